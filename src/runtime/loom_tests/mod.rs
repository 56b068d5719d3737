//! Every interleaving of what threads share, of the real code of this layer: `bash tests/loom.sh`.
//!
//! A model is run once for each order in which its threads can go on, up to so many preemptions, and for each older value
//! that a load may still give. A thread that nobody wakes any more is a deadlock, which the checker reports.

mod decisions;
mod ending;
mod gate;
mod links;
mod mailbox;
pub(super) mod stand_ins;
mod world;
