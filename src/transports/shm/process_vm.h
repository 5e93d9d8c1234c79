// Copies between this process's memory and another's with process_vm_readv and process_vm_writev: any memory,
// nothing mapped, one call for up to IOV_MAX pieces. Permission is ptrace's, decided by the kernel at each
// call.
#pragma once

#include <limits.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "towline/plugin/cursor.hpp"
#include "towline/status.h"
#include "transports/shm/wire.h"

namespace towline::shm {

// 0, or why process_vm does not work with this process: an errno, EBADMSG when the memory is not the expected
// one (another process under a reused pid, or another image after exec). Reads the cookie and compares it,
// writes the probe cell and reads it back.
int prove_process_vm(pid_t pid, const Proof& proof, const uint64_t incarnation[2]) noexcept;

// Can the first and the last byte of a range be read? 0 or an errno; EFAULT for memory that has no ordinary
// pages behind it, such as a device's.
int try_range(pid_t pid, uint64_t address, uint64_t bytes) noexcept;

Status status_from_process_vm(int error) noexcept;
const char* process_vm_text(int error) noexcept;  // a few words for people; 0: "works"

// The way of a plan to one remote region: through memory mapped here, or by process_vm.
struct RegionWay {
  bool mapped = false;
  uint64_t delta = 0;  // added to the owner's addresses, modulo 2^64, when mapped
};

// Copies further bytes of a plan, mapped segments directly and the others by process_vm, until `max_bytes`
// have been dealt with, the cursor is done or something fails. op: towline_op_t.
struct CopyResult {
  uint64_t position = 0;  // of the plan: every byte before it, from where the cursor stood, is moved
  int error = 0;          // errno of what follows it; 0: none
};
CopyResult copy_slice(plugin::Cursor& cursor, const RegionWay* ways, uint32_t op, pid_t pid,
                      uint64_t max_bytes) noexcept;

// The bytes [begin, end) of a plan that is one piece, whose byte 0 lies at `local` and `remote`.
CopyResult copy_piece(uint32_t op, pid_t pid, uint64_t local, uint64_t remote, uint64_t begin,
                      uint64_t end) noexcept;

}  // namespace towline::shm
