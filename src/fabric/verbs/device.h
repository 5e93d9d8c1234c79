// One port of an RDMA device, opened: what it can do, its address, registered memory.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "fabric/domain.h"
#include "fabric/verbs/gid.h"
#include "fabric/verbs/library.h"
#include "fabric/verbs/verbs.h"

namespace towline::fabric {

// Owns an object of the library that one of its functions ends.
template <class T>
struct VerbsDeleter {
  int (*end)(T* object) = nullptr;
  void operator()(T* object) const noexcept {
    if (end != nullptr) (void)end(object);
  }
};
template <class T>
using VerbsObject = std::unique_ptr<T, VerbsDeleter<T>>;

// A local key of memory that the processor can't read has this bit, which stays within this process.
inline constexpr uint64_t kDeviceMemoryKey = uint64_t{1} << 32;

struct VerbsPort {
  bool active = false;
  bool roce = false;
  uint16_t lid = 0;
  uint16_t pkey_index = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  uint64_t bandwidth_bytes_per_s = 0;
  uint32_t max_message_bytes = 0;
  std::string state;
};

class VerbsDevice {
 public:
  // Throws Error as make_verbs_domain.
  VerbsDevice(const VerbsLibrary& library, const VerbsOptions& options);

  const VerbsLibrary& library() const noexcept { return library_; }
  const std::string& name() const noexcept { return name_; }  // "mlx5_0/1"
  uint8_t port_number() const noexcept { return options_.port; }
  const ibv_device_attr& limits() const noexcept { return limits_; }
  ibv_context* context() const noexcept { return context_.get(); }
  ibv_pd* domain() const noexcept { return domain_.get(); }
  const VerbsPort& port() const noexcept { return port_; }
  const GidChoice& gid() const noexcept { return gid_; }
  int32_t numa_node() const noexcept { return numa_node_; }

  // Asks for the port's state and chooses its address again. False: the port is not active, or has no address.
  bool refresh() noexcept;

  // Any thread, beside everything else. Throws Error.
  Registration register_memory(const MemoryToRegister& memory, bool relaxed) const;
  void deregister_memory(const Registration& registration) const noexcept;

 private:
  VerbsPort query_port() const;
  uint16_t choose_partition(uint16_t entries) const noexcept;
  GidChoice query_gid() const;
  ibv_mr* register_host_memory(const MemoryToRegister& memory, unsigned access) const noexcept;
  [[noreturn]] void fail_registration(const MemoryToRegister& memory, int error) const;

  const VerbsLibrary& library_;
  const VerbsOptions options_;
  std::string name_;
  VerbsObject<ibv_context> context_;
  VerbsObject<ibv_pd> domain_;
  ibv_device_attr limits_{};
  VerbsPort port_;
  GidChoice gid_;
  int32_t numa_node_ = -1;
};

}  // namespace towline::fabric
