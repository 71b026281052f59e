//! Open segment files and recently read blocks, both bounded.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::{Block, BlockRef, read_block, segment_name};
use crate::disk::{Disk, DiskFile};

/// The way to the bytes of segments.
#[derive(Debug)]
pub(crate) struct Segments {
    disk: Arc<dyn Disk>,
    files: Mutex<Files>,
    blocks: Mutex<Blocks>,
}

#[derive(Debug, Default)]
struct Files {
    open: HashMap<u64, (Arc<dyn DiskFile>, u64), RandomState>,
    tick: u64,
    max: usize,
}

#[derive(Debug, Default)]
struct Blocks {
    map: HashMap<(u64, u64), (Block, usize, bool), RandomState>,
    queue: VecDeque<(u64, u64)>,
    bytes: usize,
    max: usize,
}

impl Segments {
    pub(crate) fn new(disk: Arc<dyn Disk>, open_max: usize, cache_max: u64) -> Self {
        let max = usize::try_from(cache_max).unwrap_or(usize::MAX);
        Self {
            disk,
            files: Mutex::new(Files {
                max: open_max.max(1),
                ..Files::default()
            }),
            blocks: Mutex::new(Blocks {
                max,
                ..Blocks::default()
            }),
        }
    }

    /// The block, if it is in memory.
    pub(crate) fn cached(&self, segment: u64, block: BlockRef) -> Option<Block> {
        let mut blocks = self.blocks.lock();
        let (block, _, used) = blocks.map.get_mut(&(segment, block.at))?;
        *used = true;
        Some(block.clone())
    }

    /// The block, from memory or from disk.
    pub(crate) fn load(&self, segment: u64, block: BlockRef) -> io::Result<Block> {
        if let Some(block) = self.cached(segment, block) {
            return Ok(block);
        }
        let read = read_block(&*self.file(segment)?, block)?;
        self.blocks.lock().insert((segment, block.at), &read, read.len());
        Ok(read)
    }

    /// An open handle on the segment's file.
    pub(crate) fn file(&self, segment: u64) -> io::Result<Arc<dyn DiskFile>> {
        {
            let mut files = self.files.lock();
            files.tick += 1;
            let tick = files.tick;
            if let Some((file, used)) = files.open.get_mut(&segment) {
                *used = tick;
                return Ok(file.clone());
            }
        }
        let file = self.disk.open(&segment_name(segment))?;
        let mut files = self.files.lock();
        if files.open.len() >= files.max
            && let Some(oldest) = files
                .open
                .iter()
                .min_by_key(|(_, (_, used))| *used)
                .map(|(id, _)| *id)
        {
            files.open.remove(&oldest);
        }
        let tick = files.tick;
        files.open.insert(segment, (file.clone(), tick));
        Ok(file)
    }

    /// Bytes of blocks in memory.
    pub(crate) fn cached_bytes(&self) -> u64 {
        self.blocks.lock().bytes as u64
    }

    /// Forgets what was read of a segment whose bytes were changed.
    pub(crate) fn forget_blocks(&self, segment: u64) {
        self.blocks.lock().forget(segment);
    }

    /// Forgets a segment that is going away.
    pub(crate) fn forget(&self, segment: u64) {
        self.files.lock().open.remove(&segment);
        self.blocks.lock().forget(segment);
    }
}

impl Blocks {
    fn insert(&mut self, key: (u64, u64), block: &Block, len: usize) {
        if len > self.max || self.map.contains_key(&key) {
            return;
        }
        while self.bytes + len > self.max {
            let Some(key) = self.queue.pop_front() else { break };
            // Second chance: a block used since it was queued goes to the back once.
            match self.map.get_mut(&key) {
                Some((_, _, used)) if *used => {
                    *used = false;
                    self.queue.push_back(key);
                }
                Some((_, len, _)) => {
                    self.bytes -= *len;
                    self.map.remove(&key);
                }
                None => {}
            }
        }
        self.bytes += len;
        self.map.insert(key, (block.clone(), len, false));
        self.queue.push_back(key);
    }

    fn forget(&mut self, segment: u64) {
        let mut freed = 0;
        self.map.retain(|key, (_, len, _)| {
            let keep = key.0 != segment;
            freed += if keep { 0 } else { *len };
            keep
        });
        self.bytes -= freed;
    }
}
