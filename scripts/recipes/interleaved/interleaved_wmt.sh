#!/usr/bin/env bash
# Interleaved bidirectional decoding on WMT and WAT: Tables 1, 2, 4 and 6 of Zhang et al. (2020), with the settings of
# appendix A.
#
#   scripts/recipes/interleaved/interleaved_wmt.sh wmt14-en-de [FOLDER]      or wmt14-en-fr, wmt16-en-ro (from ro to en, as in the
#                                                                paper), wmt18-en-ru, wat17-en-ja, any set of wmt_data.sh
#
# On wmt14-en-de GEOMETRIES are 1x1 2x1 2x2 4x1 (Table 1) and STUDENTS 1x1 2x1 2x2 (Table 4), on other sets 2x1 2x2 and none
# (Table 6). Table 2 is
#   SETTINGS=raw STUDENTS= GEOMETRIES="2x1 2x1+vanilla-mask 2x1+vanilla-positions 2x1+middle-to-side
#       2x1+independent-directions 1x2 2x2 1x4" scripts/recipes/interleaved/interleaved_wmt.sh wmt14-en-de
# Outputs have at most as many tokens as the source and 50 more, as in the authors' code (DECODE_FLAGS, DISTILL_FLAGS).
# Killed at any moment, the same command goes on. Environment: what interleaved_common.sh and wmt_common.sh list.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

case ${1:-} in
    wmt14-en-de) GEOMETRIES=${GEOMETRIES-1x1 2x1 2x2 4x1} STUDENTS=${STUDENTS-1x1 2x1 2x2} ;;
    wmt16-en-ro) DIRECTION=${DIRECTION:-ro-en} ;;
esac
LIMITS="--max-len-a 1 --max-len-b 50"
DECODE_FLAGS="$LIMITS ${DECODE_FLAGS:-}"
DISTILL_FLAGS="$LIMITS ${DISTILL_FLAGS:-}"
. "$(dirname "${BASH_SOURCE[0]}")/interleaved_common.sh"
check_grid
. "$(dirname "${BASH_SOURCE[0]}")/../wmt_common.sh"

DISTILLED=$WORK/$RUN-distilled-$DIRECTION
grid
report "Interleaved decoding, $SET, $DIRECTION"
