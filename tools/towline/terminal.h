// Output for people: colour, tables, a progress bar.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace tool {

// An output stream. Uses colour and redrawing only if it is a terminal and colour is not disabled.
class Terminal {
 public:
  Terminal(std::FILE* stream, bool colour_allowed);

  [[nodiscard]] bool interactive() const { return interactive_; }
  [[nodiscard]] unsigned width() const;
  [[nodiscard]] std::FILE* stream() const { return stream_; }

  [[nodiscard]] std::string bold(std::string_view text) const { return style(text, "1"); }
  [[nodiscard]] std::string dim(std::string_view text) const { return style(text, "2"); }
  [[nodiscard]] std::string green(std::string_view text) const { return style(text, "32"); }
  [[nodiscard]] std::string red(std::string_view text) const { return style(text, "31"); }

 private:
  [[nodiscard]] std::string style(std::string_view text, const char* code) const;

  std::FILE* stream_;
  bool interactive_;
  bool colour_;
};

// A table whose columns are as wide as their widest cell. The last column may wrap at the terminal's edge, or
// at a newline. Cells may be coloured.
class Table {
 public:
  enum class Align { kLeft, kRight, kWrap };
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] std::string render(const Terminal& terminal) const;
  // `width`: where lines end; 0: nowhere.
  [[nodiscard]] std::string render(const Terminal& terminal, unsigned width) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// The columns a text takes: without escape sequences, one for each UTF-8 character.
[[nodiscard]] size_t visible_width(std::string_view text);

// The width of a progress bar on a terminal of this width, which leaves room for the text.
[[nodiscard]] unsigned bar_cells(unsigned width);

// One line that is redrawn in place; prints nothing if the stream is not a terminal.
class ProgressBar {
 public:
  ProgressBar(const Terminal& terminal, std::string title);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `share` from 0 to 1. Draws at most every 100 ms.
  void update(double share, std::string_view text);
  void clear();

 private:
  const Terminal& terminal_;
  std::string title_;
  std::chrono::steady_clock::time_point drawn_at_{};
  bool drawn_ = false;
};

}  // namespace tool
