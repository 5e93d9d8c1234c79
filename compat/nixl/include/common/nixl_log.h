// Where plugins include it from.
#pragma once

#include "../utils/common/nixl_log.h"
