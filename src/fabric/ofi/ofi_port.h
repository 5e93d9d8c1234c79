// A device of a libfabric provider, opened: what its domains share however they use endpoints.
#pragma once

#include <sys/types.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/os/unique_fd.h"
#include "fabric/domain.h"
#include "fabric/ofi/ofi.h"
#include "fabric/ofi/ofi_end.h"
#include "fabric/ofi/ofi_library.h"

namespace towline::fabric {

struct OfiInfoDeleter {
  void operator()(fi_info* info) const noexcept { OfiLibrary::get().free_info(info); }
};
using OfiInfo = std::unique_ptr<fi_info, OfiInfoDeleter>;

template <class T>
struct FidDeleter {
  void operator()(T* object) const noexcept { fi_close(&object->fid); }
};
template <class T>
using Fid = std::unique_ptr<T, FidDeleter<T>>;

// All devices of the provider that have what the engine needs. Throws Error(kNotFound).
OfiInfo find_ofi_devices(const OfiOptions& options);
uint64_t ofi_bandwidth(const fi_info& info) noexcept;
Status ofi_status_of(int error) noexcept;

struct OfiEndpoint {
  UniqueFd file;  // of the provider shm, locked while the endpoint lives
  Fid<fid_av> table;
  Fid<fid_ep> endpoint;
};

class OfiPort : public Domain {
 public:
  const DomainTraits& traits() const noexcept override { return traits_; }
  // Ends tell all there is when a connection is made.
  std::vector<uint8_t> address() const override { return {}; }
  Registration register_memory(const MemoryToRegister& memory) override;
  void deregister_memory(const Registration& registration) noexcept override;
  int event_fd() const noexcept override { return waits_ ? poller_.get() : -1; }

 protected:
  OfiPort(OfiInfo info, const OfiOptions& options);

  // Throws Error(kIo) that names the call.
  void check(int64_t result, const char* call) const;
  // With a descriptor to wait on if the provider has one; that of the first queue without it ends waiting.
  Fid<fid_cq> open_queue(std::size_t entries, fi_cq_format format);
  void watch(fid_cq& queue) noexcept;
  // Whether the descriptor will tell of what comes to the queue; and whether it tells of nothing that is there already.
  [[nodiscard]] bool may_wait(fid_cq& queue) const noexcept;
  [[nodiscard]] bool is_quiet() const noexcept;
  OfiEndpoint open_endpoint(fid_cq& queue, std::size_t peers) const;
  [[nodiscard]] std::vector<uint8_t> name_of(fid_ep& endpoint) const;
  // Adds the end to the table. Throws Error: kProtocol, kUnreachable.
  [[nodiscard]] fi_addr_t insert(fid_av& table, const OfiEnd& end) const;
  [[nodiscard]] OfiEnd decode(std::span<const uint8_t> end) const;
  [[nodiscard]] static ssize_t start(fid_ep* endpoint, fi_addr_t peer, uint64_t token,
                                     const WorkRequest& request, void* context) noexcept;
  // The first of `requests`, or the first few that can go as one: they have one kind, and all or none of them fail.
  [[nodiscard]] std::span<const WorkRequest> first_together(
      std::span<const WorkRequest> requests) const noexcept;
  [[nodiscard]] static ssize_t start_together(fid_ep* endpoint, fi_addr_t peer,
                                              std::span<const WorkRequest> requests, void* context) noexcept;
  // Connections end rarely, so this is no data path.
  void tell(int error, const char* provider_text) const noexcept;

  OfiInfo info_;
  DomainTraits traits_;
  Fid<fid_fabric> fabric_;
  Fid<fid_domain> domain_;
  UniqueFd poller_;
  bool waits_ = true;
  std::size_t most_together_ = 1;  // requests
};

// One endpoint of the rail for all connections that it initiates, and one for all that peers initiate.
std::unique_ptr<Domain> make_shared_ofi_domain(OfiInfo info, const OfiOptions& options);
bool may_share_endpoints(const fi_info& info, const OfiOptions& options) noexcept;

}  // namespace towline::fabric
