// libfabric's entry points, looked up at run time. All else of its API goes through tables in its objects.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <memory>
#include <string>

#include "base/os/dynamic_library.h"

namespace towline::fabric {

class OfiLibrary {
 public:
  // Loaded once, and kept: providers leave threads and exit handlers. Throws Error(kUnsupported).
  static OfiLibrary& get();

  std::string error_text(int64_t code) const;  // of a negative result
  // Needs no memory.
  const char* plain_error_text(int error) const noexcept { return strerror_(error < 0 ? -error : error); }
  uint32_t version() const noexcept { return version_; }  // of the API that is asked for
  uint32_t runtime() const noexcept { return runtime_; }  // of the library
  // Whether rxm ends the connection behind an address that is removed (FI_AV_REMOVE_CLEANUP). False where the
  // process has loaded the library before, or its environment says no.
  bool ends_removed() const noexcept { return ends_removed_; }

  // One that the caller frees by free_info.
  fi_info* empty_info() const noexcept { return dupinfo_(nullptr); }
  fi_info* copy_info(const fi_info* info) const noexcept { return dupinfo_(info); }
  void free_info(fi_info* info) const noexcept { freeinfo_(info); }
  int get_info(const char* node, uint64_t flags, const fi_info* hints, fi_info** info) const noexcept {
    return getinfo_(version_, node, nullptr, flags, hints, info);
  }
  int open_fabric(fi_fabric_attr* attributes, fid_fabric** fabric) const noexcept {
    return fabric_(attributes, fabric, nullptr);
  }

 private:
  OfiLibrary();

  DynamicLibrary library_;
  uint32_t version_ = 0;
  uint32_t runtime_ = 0;
  bool ends_removed_ = false;
  decltype(&fi_getinfo) getinfo_ = nullptr;
  decltype(&fi_freeinfo) freeinfo_ = nullptr;
  decltype(&fi_dupinfo) dupinfo_ = nullptr;
  decltype(&fi_fabric) fabric_ = nullptr;
  decltype(&fi_strerror) strerror_ = nullptr;
};

}  // namespace towline::fabric
