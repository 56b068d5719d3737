//! Every interleaving of what threads share: `bash tests/loom.sh`.

pub(super) mod stand_ins;
