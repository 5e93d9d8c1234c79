// Source-compatible with NIXL's header of this name.
#pragma once

#define CONCAT_0(a, b) a##b
#define CONCAT(a, b) CONCAT_0(a, b)
#define UNIQUE_NAME(name) CONCAT(name, __COUNTER__)
