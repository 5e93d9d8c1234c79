#include "storage/hf3fs/usrbio_api.h"

#include "storing/calls/vendor_library.h"

namespace towline::hf3fs {

static_assert(sizeof(Iov) == 312 && sizeof(Ior) == 600 && sizeof(Completion) == 24,
              "structures of hf3fs_usrbio.h");

Api Api::load(const std::string& file) {
  const calls::VendorLibrary library("hf3fs", file);
  Api api;
  library.get(api.iov_create, "hf3fs_iovcreate");
  library.get(api.iov_destroy, "hf3fs_iovdestroy");
  library.get(api.ior_create, "hf3fs_iorcreate");
  library.get(api.ior_destroy, "hf3fs_iordestroy");
  library.get(api.register_fd, "hf3fs_reg_fd");
  library.get(api.deregister_fd, "hf3fs_dereg_fd");
  library.get(api.prepare, "hf3fs_prep_io");
  library.get(api.submit, "hf3fs_submit_ios");
  library.get(api.wait, "hf3fs_wait_for_ios");
  return api;
}

}  // namespace towline::hf3fs
