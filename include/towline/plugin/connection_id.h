// The plugin table "connection_id", version 1: for transports that can lose a connection with bytes under way
// at the peer. A backend with the tables of v1.h may have it beside them.
//
// When such a connection ends, only the peer can say that it places and reads nothing more for it. The core
// asks the peer for that over another connection, and names the one that ended by this number. Without this
// table, the remote fence of such a transfer stays unknown until the peer is gone.
#pragma once

#include <towline/plugin/v1.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct towline_connection_id_table_v1 {
  size_t struct_size;
  // A random number that both ends know the connection by: at the connector from TOWLINE_CONNECTION_UP on, at
  // the acceptor from the host's accepted() on, until disconnect. 0: there is none, since the peer is older.
  // Under the connection's worker's lock.
  uint64_t (*id)(towline_connection* connection);
} towline_connection_id_table_v1;

#ifdef __cplusplus
}  // extern "C"
#endif
