// A library that takes most of the static thread-local storage that a process keeps for libraries loaded late.
_Thread_local char taken[1024] __attribute__((tls_model("initial-exec"), visibility("hidden")));

char* storage_of_thread(void);
char* storage_of_thread(void) { return taken; }
