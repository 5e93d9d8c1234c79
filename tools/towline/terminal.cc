#include "terminal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "streams.h"

namespace tool {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Terminal::Terminal(std::FILE* stream, bool colour_allowed)
    : stream_(stream), interactive_(isatty(fileno(stream)) == 1), colour_(interactive_ && colour_allowed) {}

unsigned Terminal::width() const {
  winsize size{};
  if (ioctl(fileno(stream_), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::string Terminal::style(std::string_view text, const char* code) const {
  return colour_ ? fmt::format("\033[{}m{}\033[0m", code, text) : std::string{text};
}

size_t visible_width(std::string_view text) {
  size_t width = 0;
  bool escaped = false;
  for (const char letter : text) {
    if (letter == '\033') escaped = true;
    const bool continues = (static_cast<unsigned char>(letter) & 0xC0) == 0x80;
    if (!escaped && !continues) ++width;
    if (escaped && letter == 'm') escaped = false;
  }
  return width;
}

namespace {

// The lines of a text, broken between words if they are wider than `room`.
std::vector<std::string> wrap(std::string_view text, size_t room) {
  std::vector<std::string> lines;
  while (true) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string line;
    for (size_t at = 0; at <= end;) {
      const size_t space = std::min(text.find(' ', at), end);
      const std::string_view word = text.substr(at, space - at);
      if (!line.empty() && visible_width(line) + 1 + visible_width(word) > room) {
        lines.push_back(std::move(line));
        line.clear();
      }
      if (!line.empty()) line += ' ';
      line += word;
      at = space + 1;
    }
    lines.push_back(std::move(line));
    if (end == text.size()) return lines;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::string Table::render(const Terminal& terminal) const {
  return render(terminal, terminal.interactive() ? terminal.width() : 0);
}

std::string Table::render(const Terminal& terminal, unsigned width) const {
  constexpr size_t kLeastRoom = 24;
  const bool wraps = columns_.back().align == Align::kWrap;
  std::vector<size_t> widths;
  size_t indent = 0;  // of the last column
  for (size_t column = 0; column < columns_.size(); ++column) {
    widths.push_back(visible_width(columns_[column].title));
    if (column + 1 == columns_.size() && wraps) break;
    for (const auto& row : rows_) widths[column] = std::max(widths[column], visible_width(row[column]));
    indent += widths[column] + 2;
  }
  const size_t room =
      width == 0 ? SIZE_MAX : std::max<size_t>(width - std::min<size_t>(indent, width), kLeastRoom);
  std::string text;
  const auto add_row = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      if (column != 0) line += "  ";
      if (columns_[column].align == Align::kWrap) {
        const std::vector<std::string> lines = wrap(row[column], room);
        line += fmt::format("{}", fmt::join(lines, "\n" + std::string(indent, ' ')));
        break;
      }
      const std::string padding(widths[column] - visible_width(row[column]), ' ');
      line += columns_[column].align == Align::kLeft ? row[column] + padding : padding + row[column];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(terminal.bold(column.title));
  add_row(titles);
  for (const auto& row : rows_) add_row(row);
  return text;
}

unsigned bar_cells(unsigned width) { return std::clamp(width / 4, 4u, 24u); }

ProgressBar::ProgressBar(const Terminal& terminal, std::string title)
    : terminal_(terminal), title_(std::move(title)) {}

void ProgressBar::update(double share, std::string_view text) {
  const auto now = steady_clock::now();
  if (!terminal_.interactive() || (drawn_ && now - drawn_at_ < milliseconds{100})) return;
  const unsigned all_cells = bar_cells(terminal_.width());
  const double cells = std::clamp(share, 0.0, 1.0) * all_cells;
  const auto full = static_cast<unsigned>(std::floor(cells));
  std::string bar;
  for (unsigned cell = 0; cell < all_cells; ++cell) {
    bar += cell < full ? "━" : (cell == full && cells - full >= 0.5) ? "╸" : terminal_.dim("─");
  }
  const size_t taken = title_.size() + all_cells + 9;
  const size_t room = terminal_.width() > taken ? terminal_.width() - taken : 0;
  tell(terminal_.stream(),
       fmt::format("\r\033[K{} {} {:3.0f}%  {}", title_, bar, share * 100, text.substr(0, room)));
  drawn_ = true;
  drawn_at_ = now;
}

void ProgressBar::clear() {
  if (!drawn_) return;
  tell(terminal_.stream(), "\r\033[K");
  drawn_ = false;
}

}  // namespace tool
