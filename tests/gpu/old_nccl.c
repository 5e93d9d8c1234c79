// A libnccl that is too old.
__attribute__((visibility("default"))) int ncclGetVersion(int* version);
__attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 21305;
  return 0;
}
