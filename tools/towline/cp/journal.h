// A journal of the pieces that a copy has finished, kept in a file, so that an interrupted copy can resume.
//
// The file has one JSON value per line: the identity of the copy, then finished pieces: the first one's number, and how many
// there are ("pieces"; one if it is missing). An incomplete line, left by a kill during a write, is ignored.
#pragma once

#include <cstdint>
#include <cstdio>
#include <iosfwd>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tool::cp {

// Parses the text of a journal of `copy`, which has `pieces` pieces. Accepts any text.
struct JournalText {
  std::vector<bool> done;
  bool of_another = false;  // it is a journal of another copy and is ignored
};
[[nodiscard]] JournalText parse_journal(std::istream& text, const nlohmann::json& copy, uint64_t pieces);

class Journal {
 public:
  // Reads the journal at `path`. If it does not exist, or belongs to another copy, no piece is done. Empty
  // path: no journal.
  Journal(std::string path, const nlohmann::json& copy, uint64_t pieces);

  [[nodiscard]] bool done(uint64_t piece) const { return done_[piece]; }
  [[nodiscard]] uint64_t done_count() const;
  // A journal of another copy was found and is ignored.
  [[nodiscard]] bool was_of_another() const { return of_another_; }
  // Forgets what it read.
  void forget();
  // Starts a new file with the pieces known to be done; add() appends to it.
  void open();
  // These pieces are durable: bytes of a file are on the device.
  void add(uint64_t first, uint64_t pieces = 1);
  // The copy is complete: removes the journal.
  void remove();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void write(const nlohmann::json& line);
  void flush();
  [[noreturn]] void fail() const;

  std::string path_;
  nlohmann::json copy_;
  std::vector<bool> done_;
  bool of_another_ = false;
  std::unique_ptr<std::FILE, Close> file_;
};

// The path of the journal for copies into a peer's memory: in `home`/towline, named by the identity of that
// memory. Makes the folder and deletes journals older than a month. Empty: there is no place for it.
[[nodiscard]] std::string journal_of_memory(const std::string& home, const std::string& memory);

}  // namespace tool::cp
