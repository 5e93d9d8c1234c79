use std::ffi::{c_char, c_void};
use std::ptr;

use towline_sys::{self as sys, Kind, Sync as Durability};

use crate::agent::Agent;
use crate::block_list::Blocks;
use crate::deadline::Timeout;
use crate::error::{check, Error, Result};
use crate::layout::Layout;
use crate::peer::RegionInfo;
use crate::region::{Access, Region};
use crate::text;

/// Options for opening a file, device or object.
#[derive(Clone, Copy, Debug)]
pub struct StorageOptions<'a> {
    /// The access that transfers have. `None`: READ, and with `create`, `truncate` or `replace` both.
    pub access: Option<Access>,
    /// Creates the file if it does not exist.
    pub create: bool,
    /// Empties it first.
    pub truncate: bool,
    /// Bypasses the page cache.
    pub direct: bool,
    /// Writes a new file that replaces the old one at [`Region::commit`].
    pub replace: bool,
    /// Objects: a WRITE or commit fails with `STALE` if another client has changed it since.
    pub conditional: bool,
    /// When a WRITE is done.
    pub sync: Durability,
    /// Permission bits of a new file, less the umask; 0: 0666.
    pub mode: u32,
    /// Size of the region; 0: the current size, or that of the layout if it may be written and is smaller.
    pub bytes: u64,
    /// As in [`RegionOptions`](crate::RegionOptions), but peers are not told; "": none.
    pub name: &'a str,
    /// For a region with a name: its elements, which become the blocks of its lists.
    pub layout: Option<Layout>,
}

impl Default for StorageOptions<'_> {
    fn default() -> Self {
        StorageOptions {
            access: None,
            create: false,
            truncate: false,
            direct: false,
            replace: false,
            conditional: false,
            sync: Durability::NONE,
            mode: 0,
            bytes: 0,
            name: "",
            layout: None,
        }
    }
}

/// Properties of a file or object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageInfo {
    /// Its URI.
    pub uri: String,
    /// `FILE`, `BLOCK` or `OBJECT`.
    pub kind: Kind,
    /// Its size.
    pub bytes: u64,
    /// When it was last modified, in nanoseconds since 1970.
    pub modified_ns: u64,
}

impl Agent {
    /// Opens and registers "file:/absolute/path" or "s3://bucket/key". Blocks as long as the file system or server.
    pub fn register_storage(&self, uri: &str, options: &StorageOptions<'_>) -> Result<Region> {
        let uri = text::owned("the URI", uri)?;
        let name = text::optional("the region's name", options.name)?;
        let layout = options.layout.map(|layout| layout.native());
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let native = sys::towline_storage_options_t {
            struct_size: std::mem::size_of::<sys::towline_storage_options_t>(),
            access: options.access.map_or(0, |access| access.0),
            flags: flag(options.create, sys::TOWLINE_STORAGE_CREATE)
                | flag(options.truncate, sys::TOWLINE_STORAGE_TRUNCATE)
                | flag(options.direct, sys::TOWLINE_STORAGE_DIRECT)
                | flag(options.replace, sys::TOWLINE_STORAGE_REPLACE)
                | flag(options.conditional, sys::TOWLINE_STORAGE_CONDITIONAL),
            sync: options.sync.0,
            mode: options.mode,
            bytes: options.bytes,
            name: text::pointer(&name),
            layout: layout.as_ref().map_or(ptr::null(), ptr::from_ref),
            ..Default::default()
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the text outlives the call; `handle` is written on success only.
        check(unsafe { sys::towline_storage_register(self.handle().native(), uri.as_ptr(), &native, &mut handle) })?;
        let mut info = sys::towline_region_info_t::default();
        // SAFETY: a successful call gives a handle, which the region takes over.
        unsafe {
            let described = check(sys::towline_region_info(handle, &mut info, std::mem::size_of_val(&info)));
            let region = Region::from_native(self.handle(), handle, ptr::null_mut(), info.bytes as usize, None);
            described.map(|_| region)
        }
    }

    /// Describes a file or object; `None` if there is none.
    pub fn query_storage(&self, uri: &str) -> Result<Option<StorageInfo>> {
        let name = text::owned("the URI", uri)?;
        let mut info = sys::towline_storage_info_t {
            struct_size: std::mem::size_of::<sys::towline_storage_info_t>(),
            ..Default::default()
        };
        // SAFETY: the text outlives the call.
        check(unsafe { sys::towline_storage_query(self.handle().native(), name.as_ptr(), &mut info) })?;
        Ok((info.exists != 0).then(|| describe(uri.to_owned(), &info)))
    }

    /// Everything whose URI begins with `prefix`, in order.
    pub fn list_storage(&self, prefix: &str) -> Result<Vec<StorageInfo>> {
        unsafe extern "C" fn found(
            argument: *mut c_void,
            uri: *const c_char,
            info: *const sys::towline_storage_info_t,
        ) -> i32 {
            // SAFETY: `argument` is the vector below; the others are valid during the call. Nothing here panics but for
            // want of memory, which aborts.
            unsafe {
                (*argument.cast::<Vec<StorageInfo>>()).push(describe(text::lossy(uri).into_owned(), &*info));
            }
            0
        }
        let prefix = text::owned("the prefix", prefix)?;
        let mut all: Vec<StorageInfo> = Vec::new();
        // SAFETY: the vector is not touched otherwise during the call.
        check(unsafe {
            sys::towline_storage_list(
                self.handle().native(),
                prefix.as_ptr(),
                Some(found),
                ptr::from_mut(&mut all).cast(),
            )
        })?;
        Ok(all)
    }
}

impl Region {
    /// Storage: makes everything written so far durable and, with `replace`, replaces the old file with the new one.
    pub fn commit(&self, timeout: impl Into<Timeout>) -> Result<()> {
        // SAFETY: the handle is valid.
        check(unsafe { sys::towline_storage_commit(self.native(), timeout.into().nanoseconds()) }).map(drop)
    }

    /// Describes the region: key, size, device, kind, access.
    pub fn info(&self) -> Result<RegionInfo> {
        let mut info = sys::towline_region_info_t::default();
        // SAFETY: the handle is valid.
        check(unsafe { sys::towline_region_info(self.native(), &mut info, std::mem::size_of_val(&info)) })?;
        Ok(RegionInfo::from(&info))
    }

    /// The block `[offset, offset + length)` of this region, of whatever kind it is.
    pub fn blocks(&self, offset: u64, length: u64) -> Result<Blocks> {
        let info = self.info()?;
        if offset.checked_add(length).map_or(true, |end| end > info.bytes) {
            let text = format!("blocks: {length} bytes at offset {offset} do not lie in {} bytes", info.bytes);
            return Err(Error::new(sys::Status::OUT_OF_RANGE, text));
        }
        Ok(Blocks::at(info.address + offset, length).on(info.kind, info.device))
    }
}

fn describe(uri: String, info: &sys::towline_storage_info_t) -> StorageInfo {
    StorageInfo { uri, kind: Kind(info.kind), bytes: info.bytes, modified_ns: info.modified_ns }
}
