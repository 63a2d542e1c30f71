# shellcheck shell=bash
# Shared by the recipes of interleaved decoding: settings that cannot be are refused before any work.
#
# Sourced, not executed.

# DIRECTIONSxWORDS, where directions are 1 or an even number.
GEOMETRY='(1|[2468]|[1-9][0-9]*[02468])x[1-9][0-9]*'
GEOMETRY_FORM="give DIRECTIONSxWORDS, such as 2x1, with 1 or an even number of directions"
ABLATION_NAMES="vanilla-mask vanilla-positions middle-to-side independent-directions one-by-one"

# check_each VARIABLE KIND PATTERN HELP: every word of VARIABLE is as PATTERN has it.
check_each() {
    local word
    for word in ${!1}; do
        [[ $word =~ ^($3)$ ]] || die "unknown $2 '$word' in $1 ($4)"
    done
}

# check_choices VARIABLE KIND CHOICES
check_choices() { check_each "$1" "$2" "${3// /|}" "choose from: $3"; }
