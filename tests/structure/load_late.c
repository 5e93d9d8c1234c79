// load_late LIBRARY...: loads them as a program does that has run for a while, with a thread that was there before, and
// keeps all of them.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static void* wait_for_end(void* mutex) {
  pthread_mutex_lock(mutex);
  pthread_mutex_unlock(mutex);
  return NULL;
}

int main(int count, char** libraries) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&mutex);
  pthread_t thread;
  if (pthread_create(&thread, NULL, wait_for_end, &mutex) != 0) return 2;
  int failures = 0;
  for (int i = 1; i < count; ++i) {
    if (dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL) != NULL) continue;
    fprintf(stderr, "%s\n", dlerror());
    ++failures;
  }
  pthread_mutex_unlock(&mutex);
  pthread_join(thread, NULL);
  return failures == 0 ? 0 : 1;
}
