//! What a post costs from Rust and from C, in turns in one run: nanoseconds a post, of one picked block into mapped
//! memory. Options in C are made once, or filled for each post as a program does whose picks differ.

use std::hint::black_box;
use std::time::{Duration, Instant};

use towline::{sys, Access, Agent, Blocks, Memory, PlanOptions, PostOptions, RegionOptions};

const POSTS: u32 = 200_000;
const ROUNDS: usize = 21;

fn main() -> towline::Result<()> {
    let (writer, owner) = (Agent::new("writer")?, Agent::new("owner")?);
    let source = writer.register(Memory::allocate(4096)?, &RegionOptions::with_access(Access::ALL))?;
    let target = owner.register(Memory::allocate(4096)?, &RegionOptions::with_access(Access::ALL))?;
    let peer = writer.connect(&owner.address()?, Duration::from_secs(5))?;
    println!("nanoseconds a post: median (min max); +: more than from C, of the medians");
    println!(
        "bytes  C                           C, filled                   Rust                             Rust, scoped"
    );
    for bytes in [64, 4096] {
        let mine = writer.block_list(&[Blocks::at(source.address(), bytes)])?;
        let theirs = peer.block_list(&[Blocks::at(target.address(), bytes)])?;
        let plan = writer.plan(&mine, &theirs, &PlanOptions::default())?;
        let pick = [0u32];
        let options = PostOptions { from: (&pick).into(), to: (&pick).into(), ..Default::default() };
        let picks =
            sys::towline_picks_t { indices: pick.as_ptr().cast(), index_bytes: 4, count: 1, ..Default::default() };
        let native = sys::towline_post_options_t {
            struct_size: std::mem::size_of::<sys::towline_post_options_t>(),
            from: picks,
            to: picks,
            ..Default::default()
        };
        let (mut from_c, mut filled, mut from_rust, mut scoped) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            for _ in 0..POSTS {
                let mut post = std::ptr::null_mut();
                // SAFETY: the plan is valid, and so is the post's handle, which is released once.
                unsafe {
                    black_box(sys::towline_plan_post(black_box(plan.native()), &native, &mut post));
                    sys::towline_post_release(post);
                }
            }
            from_c.push(begin.elapsed().as_nanos() as f64 / f64::from(POSTS));
            let begin = Instant::now();
            for _ in 0..POSTS {
                let mut post = std::ptr::null_mut();
                let native = sys::towline_post_options_t {
                    struct_size: std::mem::size_of::<sys::towline_post_options_t>(),
                    from: black_box(picks),
                    to: black_box(picks),
                    ..Default::default()
                };
                // SAFETY: as above.
                unsafe {
                    black_box(sys::towline_plan_post(black_box(plan.native()), &native, &mut post));
                    sys::towline_post_release(post);
                }
            }
            filled.push(begin.elapsed().as_nanos() as f64 / f64::from(POSTS));
            let begin = Instant::now();
            for _ in 0..POSTS {
                let _ = black_box(black_box(&plan).post(&options));
            }
            from_rust.push(begin.elapsed().as_nanos() as f64 / f64::from(POSTS));
            let begin = Instant::now();
            for _ in 0..POSTS {
                let _ = black_box(black_box(&plan).post_scoped(&options));
            }
            scoped.push(begin.elapsed().as_nanos() as f64 / f64::from(POSTS));
        }
        let [c, filled, rust, scoped] = [from_c, filled, from_rust, scoped].map(|mut all: Vec<f64>| {
            all.sort_by(f64::total_cmp);
            all
        });
        let shown = |all: &[f64]| format!("{:7.1} ({:7.1} {:7.1})", all[ROUNDS / 2], all[0], all[ROUNDS - 1]);
        let more = |all: &[f64]| all[ROUNDS / 2] - c[ROUNDS / 2];
        println!(
            "{bytes:5}  {}  {}  {} {:+.1}  {} {:+.1}",
            shown(&c),
            shown(&filled),
            shown(&rust),
            more(&rust),
            shown(&scoped),
            more(&scoped)
        );
    }
    Ok(())
}
