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
