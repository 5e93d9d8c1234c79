// Other programs on the machine: noticed, and waited for on request.
#pragma once

namespace bench {

// Waits until the cores have been idle for a moment, at most `limit_s`. Returns the seconds waited.
double wait_until_quiet(double limit_s);

}  // namespace bench
