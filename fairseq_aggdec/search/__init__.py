"""THE loop (propose, verify, accept, commit), its state and rules, and fairseq's generator contract around it."""
