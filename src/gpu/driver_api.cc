#include "gpu/driver_api.h"

#include "base/error.h"

namespace towline::cuda::driver {

namespace {

constexpr int kWithClusters = 11080;
constexpr int kWanted = 12000;      // 12.0
constexpr int kOfWholeGpus = 9020;  // functions that knew no MIG yet
constexpr int kWithGreen = 12050;
constexpr int kWithBatches = 12080;
constexpr int kWithoutFailIndex = 13000;  // of a batch

using GetProcAddress = Result (*)(const char*, void**, int, uint64_t, int*);

}  // namespace

Api::Api(const char* file) : library(file) {
  library.keep_loaded();  // it leaves threads and exit handlers behind
  const auto get_version = library.symbol<Result (*)(int*)>("cuDriverGetVersion");
  check(get_version(&version), "cuDriverGetVersion");
  if (version < kWanted)
    fail(Status::kUnsupported, "cuda: the driver speaks CUDA {}.{}; 12.0 or later is needed", version / 1000,
         version % 1000 / 10);
  const auto find = library.symbol<GetProcAddress>("cuGetProcAddress_v2");
  const auto load = [&](auto& function, const char* name) {
    void* address = nullptr;
    int found = 0;
    if (find(name, &address, kWanted, 0, &found) != kSuccess || address == nullptr)
      fail(Status::kUnsupported, "cuda: the driver (CUDA {}.{}) has no {}", version / 1000,
           version % 1000 / 10, name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  load(init, "cuInit");
  load(get_error_name, "cuGetErrorName");
  load(device_get_count, "cuDeviceGetCount");
  load(device_get, "cuDeviceGet");
  load(device_get_name, "cuDeviceGetName");
  load(device_get_uuid, "cuDeviceGetUuid");
  load(device_get_attribute, "cuDeviceGetAttribute");
  load(device_can_access_peer, "cuDeviceCanAccessPeer");
  load(device_get_p2p_attribute, "cuDeviceGetP2PAttribute");
  load(primary_get_state, "cuDevicePrimaryCtxGetState");
  load(primary_retain, "cuDevicePrimaryCtxRetain");
  load(context_push, "cuCtxPushCurrent");
  load(context_pop, "cuCtxPopCurrent");
  load(context_get_current, "cuCtxGetCurrent");
  load(context_synchronize, "cuCtxSynchronize");
  load(context_enable_peer, "cuCtxEnablePeerAccess");
  load(module_load, "cuModuleLoadData");
  load(module_get_function, "cuModuleGetFunction");
  load(launch, "cuLaunchKernel");
  load(launch_with, "cuLaunchKernelEx");
  load(function_get_attribute, "cuFuncGetAttribute");
  load(stream_create, "cuStreamCreate");
  load(stream_create_with_priority, "cuStreamCreateWithPriority");
  load(context_get_priorities, "cuCtxGetStreamPriorityRange");
  load(stream_destroy, "cuStreamDestroy");
  load(stream_query, "cuStreamQuery");
  load(stream_synchronize, "cuStreamSynchronize");
  load(stream_write_value64, "cuStreamWriteValue64");
  load(stream_get_context, "cuStreamGetCtx");
  load(stream_is_capturing, "cuStreamIsCapturing");
  load(stream_get_capture, "cuStreamGetCaptureInfo");
  load(stream_update_capture, "cuStreamUpdateCaptureDependencies");
  load(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  load(event_create, "cuEventCreate");
  load(event_destroy, "cuEventDestroy");
  load(event_record, "cuEventRecord");
  load(graph_add_event_record, "cuGraphAddEventRecordNode");
  load(graph_add_edges, "cuGraphAddDependencies");
  load(graph_remove_edges, "cuGraphRemoveDependencies");
  load(stream_wait_event, "cuStreamWaitEvent");
  load(memory_alloc, "cuMemAlloc");
  load(memory_free, "cuMemFree");
  load(memory_set32, "cuMemsetD32");
  load(memory_set32_async, "cuMemsetD32Async");
  load(memory_copy_async, "cuMemcpyAsync");
  load(host_alloc, "cuMemHostAlloc");
  load(host_free, "cuMemFreeHost");
  load(host_register, "cuMemHostRegister");
  load(host_unregister, "cuMemHostUnregister");
  load(host_device_pointer, "cuMemHostGetDevicePointer");
  load(pointer_get_attribute, "cuPointerGetAttribute");
  load(pointer_get_attributes, "cuPointerGetAttributes");
  load(ipc_get_handle, "cuIpcGetMemHandle");
  load(ipc_open_handle, "cuIpcOpenMemHandle");
  load(ipc_close_handle, "cuIpcCloseMemHandle");
  load(vmm_create, "cuMemCreate");
  load(vmm_granularity, "cuMemGetAllocationGranularity");
  load(context_get_device, "cuCtxGetDevice");
  load(event_query, "cuEventQuery");
  load(vmm_retain, "cuMemRetainAllocationHandle");
  load(vmm_release, "cuMemRelease");
  load(vmm_export, "cuMemExportToShareableHandle");
  load(vmm_import, "cuMemImportFromShareableHandle");
  load(vmm_reserve, "cuMemAddressReserve");
  load(vmm_free, "cuMemAddressFree");
  load(vmm_map, "cuMemMap");
  load(vmm_unmap, "cuMemUnmap");
  load(vmm_set_access, "cuMemSetAccess");
  load(vmm_get_access, "cuMemGetAccess");
  load(pool_set_access, "cuMemPoolSetAccess");
  load(pool_get_access, "cuMemPoolGetAccess");
  const auto load_from = [&](int from, auto& function, const char* name) {
    void* address = nullptr;
    int found = 0;
    if (version >= from && find(name, &address, from, 0, &found) == kSuccess)
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  load_from(kOfWholeGpus, device_get_whole_uuid, "cuDeviceGetUuid");
  load_from(kWanted, pointer_set_attribute, "cuPointerSetAttribute");
  load_from(kWanted, range_handle, "cuMemGetHandleForAddressRange");
  load_from(kWithClusters, occupancy_clusters, "cuOccupancyMaxActiveClusters");
  load_from(kWithGreen, function_load, "cuFuncLoad");
  load_from(kWithGreen, device_get_resource, "cuDeviceGetDevResource");
  load_from(kWithGreen, split_multiprocessors, "cuDevSmResourceSplitByCount");
  load_from(kWithGreen, describe_resource, "cuDevResourceGenerateDesc");
  load_from(kWithGreen, green_create, "cuGreenCtxCreate");
  load_from(kWithGreen, green_get_resource, "cuGreenCtxGetDevResource");
  load_from(kWithGreen, context_of_green, "cuCtxFromGreenCtx");
  load_from(kWithGreen, green_stream_create, "cuGreenCtxStreamCreate");
  load_from(kWithBatches, memory_copy_batch_12, "cuMemcpyBatchAsync");
  load_from(kWithoutFailIndex, memory_copy_batch, "cuMemcpyBatchAsync");
}

std::string Api::text(Result code) const {
  const char* name = nullptr;
  if (get_error_name != nullptr && get_error_name(code, &name) == kSuccess && name != nullptr)
    return fmt::format("{} ({})", name, code);
  return fmt::format("CUDA error {}", code);
}

void Api::check(Result code, const char* what) const {
  if (code == kSuccess) return;
  const Status status = code == 2 ? Status::kOutOfMemory : Status::kIo;
  fail(status, "cuda: {}: {}", what, text(code));
}

}  // namespace towline::cuda::driver
