//! Ranks that are threads of one process, and meet in a folder.

mod inline_task;

use std::sync::mpsc;
use std::time::Duration;

use futures_lite::future::block_on;
use towline::collectives::{Communicator, CommunicatorOptions};
use towline::{Reduction, Status};

const RANKS: i32 = 3;

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("towline-rust-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn ranks(name: &str, run: impl Fn(Communicator) + Sync) {
    let folder = folder(name);
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let (run, folder) = (&run, &folder);
            scope.spawn(move || {
                let options = CommunicatorOptions {
                    name: name.into(),
                    rank: Some((rank, RANKS)),
                    bootstrap: format!("file:{}", folder.display()),
                    timeout: Some(Duration::from_secs(60)),
                    ..Default::default()
                };
                run(Communicator::new(&options).unwrap());
            });
        }
    });
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn every_operation_gives_each_rank_its_result() {
    ranks("operations", |world| {
        let rank = world.rank();
        assert_eq!(world.size(), RANKS);
        let mut sum = [rank as f32, 1.0];
        world.all_reduce(&mut sum, Reduction::SUM).unwrap();
        assert_eq!(sum, [3.0, 3.0]);
        let mut most = [rank as i64 * 10];
        world.reduce(&mut most, Reduction::MAX, 1).unwrap();
        assert_eq!(most[0], if rank == 1 { 20 } else { rank as i64 * 10 });
        let mut word = [rank as u8; 5];
        world.broadcast(&mut word, 2).unwrap();
        assert_eq!(word, [2; 5]);
        let mut all = [0u32; 6];
        world.all_gather(&[rank as u32, 7], &mut all).unwrap();
        assert_eq!(all, [0, 7, 1, 7, 2, 7]);
        let mut part = [0i32; 2];
        world.reduce_scatter(&[1, 2, 3, 4, 5, 6], &mut part, Reduction::SUM).unwrap();
        assert_eq!(part, [(2 * rank + 1) * 3, (2 * rank + 2) * 3]);
        let mut from_each = [0u64; 3];
        world.all_to_all(&[rank as u64 * 10, rank as u64 * 10 + 1, rank as u64 * 10 + 2], &mut from_each).unwrap();
        assert_eq!(from_each, [rank as u64, rank as u64 + 10, rank as u64 + 20]);
        match rank {
            0 => world.send(&[1.5f64], 1, 9).unwrap(),
            1 => {
                let mut value = [0f64];
                world.recv(&mut value, 0, 9).unwrap();
                assert_eq!(value, [1.5]);
            }
            _ => {}
        }
        world.barrier().unwrap();
        assert!(world.info().unwrap().contains("ranks"));
    });
}

#[test]
fn works_run_beside_the_application_and_keep_their_buffers() {
    ranks("works", |world| {
        let works: Vec<_> = (0..4).map(|_| world.start_all_reduce(vec![1i32; 1000], Reduction::SUM).unwrap()).collect();
        for (number, work) in works.into_iter().enumerate() {
            match number {
                0 => drop(work),
                1 => assert_eq!(work.wait().unwrap(), vec![RANKS; 1000]),
                _ => assert_eq!(block_on(work.done()).unwrap(), vec![RANKS; 1000]),
            }
        }
    });
}

#[test]
fn groups_are_split_off_and_wrong_buffers_are_refused() {
    ranks("groups", |world| {
        let rank = world.rank();
        let error = world.all_gather(&[1u8, 2], &mut [0; 5]).unwrap_err();
        assert_eq!(error.status(), Status::INVALID_ARGUMENT);
        assert!(error.message().contains("5 elements"), "{error}");
        let members: &[i32] = if rank == 1 { &[] } else { &[2, 0] };
        let group = world.split(members, "ends").unwrap();
        assert_eq!(group.is_none(), rank == 1);
        if let Some(group) = group {
            assert_eq!(group.rank(), if rank == 2 { 0 } else { 1 });
            let mut sum = [1u16];
            group.all_reduce(&mut sum, Reduction::SUM).unwrap();
            assert_eq!(sum, [2]);
        }
        world.barrier().unwrap();
    });
}

#[test]
fn an_abort_reaches_every_rank_with_its_reason() {
    ranks("aborts", |world| {
        if world.rank() == 0 {
            world.abort("enough").unwrap();
        }
        let error = world.barrier().unwrap_err();
        assert_eq!(error.status(), Status::CANCELLED);
        assert!(error.message().contains("enough"), "{error}");
    });
}

#[test]
fn a_communicator_that_ends_in_the_function_of_a_work_leaves() {
    ranks("leaves", |world| {
        if world.rank() != 0 {
            // The last rank to come ends the operation of the first one, which leaves then.
            world.all_reduce(&mut [1i32], Reduction::SUM).unwrap();
            let left = world.barrier().unwrap_err();
            assert_eq!(left.status(), Status::PEER_LOST, "{left}");
            return;
        }
        let (told, ended) = mpsc::channel();
        let task = async move {
            let sum = world.start_all_reduce(vec![1i32], Reduction::SUM).unwrap().done().await;
            drop(world);
            told.send(sum).unwrap();
        };
        inline_task::start(task);
        assert_eq!(ended.recv().unwrap().unwrap(), [RANKS]);
    });
}
