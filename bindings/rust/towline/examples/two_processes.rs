//! A process writes pages into another one's memory and tells it so. Run it without arguments: it starts its peer itself.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_lite::future::block_on;
use towline::{Access, Agent, Blocks, Memory, PlanOptions, PostOptions, RegionOptions, Result};

const PAGE: u64 = 4096;
const PAGES: u64 = 256;
const SOON: Duration = Duration::from_secs(10);

/// Owns the pages: prints its address, waits for the notice, and looks at what arrived.
fn decode() -> Result<()> {
    let agent = Agent::new("decode-0")?;
    let cache = agent.register(Memory::allocate((PAGE * PAGES) as usize)?, &RegionOptions::with_access(Access::ALL))?;
    println!("{}", agent.address()?);
    let _ = std::io::stdout().flush();

    let notice = block_on(agent.receive_async())?;
    let mut page = vec![0; PAGE as usize];
    cache.read_at(40 * PAGE as usize, &mut page)?;
    eprintln!(
        "{} sent {:?}; page 40 is full of {}",
        notice.peer_name(),
        notice.bytes().escape_ascii().to_string(),
        page[0]
    );
    assert!(page.iter().all(|byte| *byte == 7));
    Ok(())
}

/// Writes every second page into the peer's memory.
fn prefill(address: &str) -> Result<()> {
    let agent = Agent::new("prefill-0")?;
    let mut memory = Memory::allocate((PAGE * PAGES) as usize)?;
    memory.as_mut_slice().fill(7);
    let cache = agent.register(memory, &RegionOptions::with_access(Access::ALL))?;

    let peer = agent.connect(address, SOON)?;
    let mine = agent.block_list(&[Blocks::at(cache.address(), PAGE).repeat(PAGES, PAGE)])?;
    let theirs = peer.block_list(&[Blocks::at(peer.regions()?[0].address, PAGE).repeat(PAGES, PAGE)])?;
    let picks: Vec<u32> = (0..PAGES as u32).step_by(2).collect();
    let plan = agent.plan(&mine, &theirs, &PlanOptions::default())?; // once for each peer
    let pages =
        PostOptions { from: (&picks).into(), to: (&picks).into(), notice: b"every second page", ..Default::default() };
    block_on(plan.run(&pages))?;
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() == Some("decode") {
        return Ok(decode()?);
    }
    let mut child =
        Command::new(std::env::current_exe()?).arg("decode").stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut address = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut address)?;
    prefill(address.trim())?;
    if !child.wait()?.success() {
        return Err("the decode process failed".into());
    }
    Ok(())
}
