// FROZEN: a copy of include/towline/export.h as plugins of the first release of ABI 1 were built against it.
// It never changes, whatever becomes of the original: tests build a plugin from it, and that must go on
// loading and moving bytes. A test that fails here says that plugins in the field would fail.
/* TOWLINE_API marks what libtowline.so exports: the functions of the C API, nothing else. */
#ifndef TOWLINE_EXPORT_H_
#define TOWLINE_EXPORT_H_

#if defined(TOWLINE_STATIC)
#define TOWLINE_API
#elif defined(__GNUC__)
#define TOWLINE_API __attribute__((visibility("default")))
#else
#define TOWLINE_API
#endif

#endif /* TOWLINE_EXPORT_H_ */
