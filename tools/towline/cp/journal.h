// What a copy has done so far, in a file beside its destination, so that a copy that was broken off can go
// on.
//
// One JSON value a line: first which copy it is, then each piece that is there. A line that is not whole, as
// a kill in the middle of writing leaves it, counts for nothing.
#pragma once

#include <cstdint>
#include <cstdio>
#include <iosfwd>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tool::cp {

// What the text of a journal says of `copy`, which has so many pieces. Any text will do.
struct JournalText {
  std::vector<bool> done;
  bool of_another = false;  // it is a journal of another copy, and counts for nothing
};
[[nodiscard]] JournalText parse_journal(std::istream& text, const nlohmann::json& copy, uint64_t pieces);

class Journal {
 public:
  // Reads what is at `path`. Another copy's, or nothing: none of `pieces` is done. Empty path: no journal.
  Journal(std::string path, const nlohmann::json& copy, uint64_t pieces);

  [[nodiscard]] bool done(uint64_t piece) const { return done_[piece]; }
  [[nodiscard]] uint64_t done_count() const;
  // A journal of another copy was there, and counts for nothing.
  [[nodiscard]] bool was_of_another() const { return of_another_; }
  // Forgets what it read.
  void forget();
  // Starts to write: what is known to be done, then what add() is told.
  void open();
  // The piece is there for good: where the bytes are a file's, on the device.
  void add(uint64_t piece);
  // The copy is whole.
  void remove();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void write(const nlohmann::json& line);

  std::string path_;
  nlohmann::json copy_;
  std::vector<bool> done_;
  bool of_another_ = false;
  std::unique_ptr<std::FILE, Close> file_;
};

// Where the journal of copies into a peer's memory lies, named by what tells that memory from any other: in
// `home`/towline. Makes the folder, and drops what has lain there for a month. Empty: there is no place for
// it.
[[nodiscard]] std::string journal_of_memory(const std::string& home, const std::string& memory);

}  // namespace tool::cp
