//! What a post costs from Rust and from C, in turns in one run: nanoseconds a post, of one page into mapped memory.

use std::hint::black_box;
use std::time::{Duration, Instant};

use towline::{sys, Access, Agent, Blocks, Memory, Op, RegionOptions, TransferOptions};

const POSTS: u32 = 200_000;
const ROUNDS: usize = 21;

fn main() -> towline::Result<()> {
    let (writer, owner) = (Agent::new("writer")?, Agent::new("owner")?);
    let source = writer.register(Memory::allocate(4096)?, &RegionOptions::with_access(Access::ALL))?;
    let target = owner.register(Memory::allocate(4096)?, &RegionOptions::with_access(Access::ALL))?;
    let peer = writer.connect(&owner.address()?, Duration::from_secs(5))?;
    println!("bytes  C ns (min max)          Rust ns (min max)       difference of the medians");
    for bytes in [64, 4096] {
        let mine = writer.block_list(&[Blocks::at(source.address(), bytes)])?;
        let theirs = peer.block_list(&[Blocks::at(target.address(), bytes)])?;
        let write = writer.transfer(Op::WRITE, &mine, &theirs, &TransferOptions::default())?;
        let (mut from_c, mut from_rust) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            for _ in 0..POSTS {
                // SAFETY: the handle is valid.
                black_box(unsafe { sys::towline_transfer_post(black_box(write.native())) });
            }
            from_c.push(begin.elapsed().as_nanos() as f64 / f64::from(POSTS));
            let begin = Instant::now();
            for _ in 0..POSTS {
                let _ = black_box(black_box(&write).post());
            }
            from_rust.push(begin.elapsed().as_nanos() as f64 / f64::from(POSTS));
        }
        from_c.sort_by(f64::total_cmp);
        from_rust.sort_by(f64::total_cmp);
        let middle = ROUNDS / 2;
        println!(
            "{bytes:5}  {:7.1} ({:7.1} {:7.1})  {:7.1} ({:7.1} {:7.1})  {:+.1}",
            from_c[middle],
            from_c[0],
            from_c[ROUNDS - 1],
            from_rust[middle],
            from_rust[0],
            from_rust[ROUNDS - 1],
            from_rust[middle] - from_c[middle]
        );
    }
    Ok(())
}
