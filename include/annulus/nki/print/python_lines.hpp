#pragma once
// Lines of Python text, with blocks by indentation and long calls broken inside their parentheses.

#include <string>
#include <string_view>
#include <vector>

namespace annulus::nki::print_detail {

/// Collects lines of at most `width` columns where the text can be broken.
class PythonLines {
 public:
  static constexpr std::size_t width = 120;

  void open_block() {
    ++depth_;
    block_start_ = lines_.size();
  }
  void close_block() { --depth_; }

  void blank() { lines_.emplace_back(); }
  void comment(std::string_view text) {
    lines_.push_back(indentation() + (text.empty() ? "#" : "# ") + std::string(text));
  }
  void statement(std::string_view text) {
    lines_.push_back(indentation() + std::string(text));
    ++statements_;
  }

  /// Appends head(arguments)tail; `head` is without the parenthesis.
  void call(std::string_view head, std::vector<std::string> const& arguments, std::string_view tail = "") {
    std::string const start = indentation() + std::string(head) + "(";
    std::string const end = ")" + std::string(tail);
    std::string line = start;
    // If the parenthesis is far to the right, arguments begin on a new line.
    std::size_t const aligned = start.size() <= width / 2 ? start.size() : indentation().size() + 2 * step;
    std::string const margin(aligned, ' ');
    bool fresh = true;
    auto const add = [&](std::string_view piece, std::size_t needed) {
      if (!fresh && line.size() + needed > width) {
        lines_.push_back(without_trailing_space(line));
        line = margin;
      }
      line += piece;
      fresh = false;
    };
    if (aligned != start.size() && !fits(start, arguments, end)) {
      lines_.push_back(line);
      line = margin;
    }
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      bool const last = i + 1 == arguments.size();
      std::string const argument = arguments[i] + (last ? end : ", ");
      std::size_t const needed = last ? argument.size() : argument.size() - 1;
      if (margin.size() + needed <= width) {
        add(argument, needed);
      } else {
        for (std::string_view piece : pieces(argument)) add(piece, without_trailing_space(piece).size());
      }
    }
    if (arguments.empty()) line += end;
    lines_.push_back(line);
    ++statements_;
  }

  /// Current end of the text, to which return_to() can truncate it.
  std::size_t mark() const { return lines_.size(); }
  int statements() const { return statements_; }
  void return_to(std::size_t mark, int statements) {
    lines_.resize(mark);
    statements_ = statements;
  }
  /// True if the next line is the first of a block.
  bool at_block_start() const { return lines_.size() == block_start_; }

  void append(PythonLines const& other) { lines_.insert(lines_.end(), other.lines_.begin(), other.lines_.end()); }

  std::string text() const {
    std::string all;
    for (std::string const& line : lines_) all += line + "\n";
    return all;
  }

 private:
  static constexpr std::size_t step = 4;

  std::string indentation() const { return std::string(depth_ * step, ' '); }

  static std::string without_trailing_space(std::string_view text) {
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    return std::string(text);
  }

  static bool fits(std::string const& start, std::vector<std::string> const& arguments, std::string const& end) {
    std::size_t size = start.size() + end.size();
    for (std::string const& argument : arguments) size += argument.size() + 2;
    return size <= width + 2;
  }

  /// Splits after commas and before signs, where a line inside parentheses may be broken.
  static std::vector<std::string_view> pieces(std::string_view text) {
    std::vector<std::string_view> found;
    std::size_t begin = 0;
    for (std::size_t i = 0; i + 2 < text.size(); ++i) {
      bool const comma = text[i] == ',' && text[i + 1] == ' ';
      bool const sign = text[i] == ' ' && (text[i + 1] == '+' || text[i + 1] == '-') && text[i + 2] == ' ';
      if (!comma && !sign) continue;
      std::size_t const end = comma ? i + 2 : i + 1;
      found.push_back(text.substr(begin, end - begin));
      begin = end;
    }
    found.push_back(text.substr(begin));
    return found;
  }

  std::vector<std::string> lines_;
  std::size_t depth_ = 0, block_start_ = 0;
  int statements_ = 0;
};

}  // namespace annulus::nki::print_detail
