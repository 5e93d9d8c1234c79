use std::ptr::NonNull;

use towline_sys as sys;

use crate::error::{check, Result};

/// Memory that a region can own while peers may reach it.
///
/// # Safety
///
/// `address()` and `bytes()` must name the same allocated memory, readable and writable, for as long as the value lives,
/// wherever the value itself is moved. Nobody else may hold a Rust reference into it while a region owns the value.
pub unsafe trait MemoryOwner: Send + 'static {
    /// The address of the memory.
    fn address(&self) -> NonNull<u8>;
    /// How many bytes it has.
    fn bytes(&self) -> usize;
}

// SAFETY: the heap allocation does not move with the vector, and a region that owns the vector lends no reference.
unsafe impl MemoryOwner for Vec<u8> {
    fn address(&self) -> NonNull<u8> {
        // A vector's pointer is never null.
        unsafe { NonNull::new_unchecked(self.as_ptr() as *mut u8) }
    }
    fn bytes(&self) -> usize {
        self.len()
    }
}

/// Memory from Towline, which every process of this host can map: shared, sealed, zeroed, aligned to pages.
#[derive(Debug)]
pub struct Memory {
    handle: NonNull<sys::towline_memory_t>,
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the handle is a plain resource, and any thread may call the C API.
unsafe impl Send for Memory {}
unsafe impl Sync for Memory {}

impl Memory {
    /// `bytes` of memory, rounded up to whole pages by the library.
    pub fn allocate(bytes: usize) -> Result<Memory> {
        Self::allocate_with(bytes, 0)
    }

    /// The same in huge pages, or an error where there are too few.
    pub fn allocate_huge(bytes: usize) -> Result<Memory> {
        Self::allocate_with(bytes, sys::TOWLINE_ALLOCATE_HUGE)
    }

    fn allocate_with(bytes: usize, flags: u32) -> Result<Memory> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is written on success only.
        check(unsafe { sys::towline_memory_allocate(bytes as u64, flags, &mut handle) })?;
        // SAFETY: a successful call gives a handle, whose address is never null.
        unsafe {
            Ok(Memory {
                handle: NonNull::new_unchecked(handle),
                address: NonNull::new_unchecked(sys::towline_memory_address(handle).cast()),
                bytes: sys::towline_memory_bytes(handle) as usize,
            })
        }
    }

    /// The memory as a slice. It is not registered yet, so no peer can reach it.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: this object owns the memory, and a region takes the object over.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.bytes) }
    }
}

// SAFETY: the mapping stays where it is until the object is dropped.
unsafe impl MemoryOwner for Memory {
    fn address(&self) -> NonNull<u8> {
        self.address
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: freed once.
        unsafe { sys::towline_memory_free(self.handle.as_ptr()) };
    }
}
