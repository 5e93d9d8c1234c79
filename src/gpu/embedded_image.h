// A file of compiled kernels as part of the library: the assembler takes it as it is.
#pragma once

// clang-format off
// Defines the symbols NAME_begin and NAME_end. At namespace scope, once for each NAME; `file` is a string literal.
#define TOWLINE_EMBED_IMAGE(NAME, file)      \
  asm("  .section .rodata\n"                 \
      "  .balign 64\n"                       \
      "  .global " #NAME "_begin\n"          \
      "  .global " #NAME "_end\n"            \
      "  .hidden " #NAME "_begin\n"          \
      "  .hidden " #NAME "_end\n"            \
      #NAME "_begin:\n"                      \
      "  .incbin \"" file "\"\n"             \
      #NAME "_end:\n"                        \
      "  .byte 0\n"                          \
      "  .previous\n");                      \
  extern "C" {                               \
  extern const unsigned char NAME##_begin[]; \
  extern const unsigned char NAME##_end[];   \
  }
// clang-format on
