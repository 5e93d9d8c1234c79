#ifdef TOWLINE_HAVE_LIBFABRIC

#include "fabric/ofi/ofi_memory.h"

#include "base/error.h"
#include "base/id.h"
#include "fabric/ofi/ofi_library.h"

namespace towline::fabric {
namespace {

constexpr uint32_t kWithDmaBufs = FI_VERSION(1, 20);

void check_gpu_memory(const fi_info& info, uint32_t library, const std::string& rail) {
  if (!ofi_moves_gpu_memory(info.fabric_attr->prov_name))
    fail(Status::kUnsupported, "{}: GPU memory is registered with the providers efa and verbs only", rail);
  if (library < kWithDmaBufs)
    fail(Status::kUnsupported, "{}: libfabric {}.{} registers no dma-buf (it needs 1.20)", rail,
         FI_MAJOR(library), FI_MINOR(library));
  if ((info.caps & FI_HMEM) == 0)
    fail(Status::kUnsupported, "{}: the device does not offer to move GPU memory (FI_HMEM)", rail);
}

int64_t register_once(fid_domain& domain, const MemoryToRegister& memory, uint64_t access, uint64_t key,
                      fid_mr** region) {
  if (memory.dmabuf_fd < 0)
    return fi_mr_reg(&domain, memory.address, memory.bytes, access, 0, key, 0, region, nullptr);
  OfiDmaBuf buffer;
  buffer.fd = memory.dmabuf_fd;
  buffer.offset = memory.dmabuf_offset;
  buffer.bytes = memory.bytes;
  buffer.base = static_cast<uint8_t*>(memory.address) - memory.dmabuf_offset;
  OfiMemoryAttributes attributes;
  attributes.known.mr_iov = reinterpret_cast<const iovec*>(&buffer);  // the flag says what it is
  attributes.known.iov_count = 1;
  attributes.known.access = access;
  attributes.known.requested_key = key;
  attributes.known.iface = FI_HMEM_CUDA;
  attributes.known.device.cuda = static_cast<int>(memory.device);
  return fi_mr_regattr(&domain, &attributes.known, kOfiDmaBuf, region);
}

}  // namespace

bool ofi_moves_gpu_memory(const std::string& provider) noexcept {
  return provider.starts_with("efa") || provider.starts_with("verbs");
}

fid_mr* ofi_register(fid_domain& domain, const fi_info& info, uint32_t library,
                     const MemoryToRegister& memory, const std::string& rail) {
  if (memory.dmabuf_fd >= 0) check_gpu_memory(info, library, rail);
  uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
  if (memory.remote_read) access |= FI_REMOTE_READ;
  if (memory.remote_write) access |= FI_REMOTE_WRITE;
  const auto key_bytes = info.domain_attr->mr_key_size;
  const uint64_t mask = key_bytes >= 8 || key_bytes == 0 ? UINT64_MAX : (uint64_t{1} << (8 * key_bytes)) - 1;
  fid_mr* region = nullptr;
  int64_t result = -FI_ENOKEY;
  // A key of ours is random, so that it can't be guessed; one in use is refused.
  for (int tries = 0; tries < 8 && result == -FI_ENOKEY; ++tries)
    result = register_once(domain, memory, access, random_u64() & mask, &region);
  if (result == 0) return region;
  const std::string why = OfiLibrary::get().error_text(result);
  if (memory.dmabuf_fd >= 0)
    fail(Status::kUnsupported, "{}: {} bytes of GPU memory at {} can't be registered by their dma-buf: {}",
         rail, memory.bytes, memory.address, why);
  fail(result == -FI_ENOMEM ? Status::kOutOfMemory : Status::kIo,
       "{}: {} bytes at {} can't be registered: {} (is the memlock limit too low?)", rail, memory.bytes,
       memory.address, why);
}

}  // namespace towline::fabric

#endif
