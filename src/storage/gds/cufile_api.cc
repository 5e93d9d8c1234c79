#include "storage/gds/cufile_api.h"

#include "storing/calls/vendor_library.h"

namespace towline::gds {

static_assert(sizeof(Description) == 24 && sizeof(Request) == 64 && sizeof(Event) == 24 && sizeof(Error) == 8,
              "structures of cufile.h");

Api Api::load(const std::string& file) {
  const calls::VendorLibrary library("gds", file);
  Api api;
  library.get(api.driver_open, "cuFileDriverOpen");
  library.get(api.handle_register, "cuFileHandleRegister");
  library.get(api.handle_deregister, "cuFileHandleDeregister");
  library.get(api.buffer_register, "cuFileBufRegister");
  library.get(api.buffer_deregister, "cuFileBufDeregister");
  library.get(api.read, "cuFileRead");
  library.get(api.write, "cuFileWrite");
  library.get(api.batch_set_up, "cuFileBatchIOSetUp");
  library.get(api.batch_submit, "cuFileBatchIOSubmit");
  library.get(api.batch_status, "cuFileBatchIOGetStatus");
  library.get(api.batch_cancel, "cuFileBatchIOCancel");
  library.get(api.batch_destroy, "cuFileBatchIODestroy");
  return api;
}

}  // namespace towline::gds
