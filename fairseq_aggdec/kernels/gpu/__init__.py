"""On a GPU: the loop's bookkeeping in few launches, compiled when it is first needed; no compiler has to be there."""
