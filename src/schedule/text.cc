#include "schedule/text.h"

#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>

#include "core/error.h"
#include "schedule/limits.h"

namespace ropewalk::schedule {
namespace {

constexpr std::size_t kMaxAlgorithmLetters = 64;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_label_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '-' ||
         c == '.';
}

/// Whatever stands in the text, cut and made printable for a message.
std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 24;
  std::string shown = "\"";
  for (const char c : text.substr(0, kShown)) {
    if (c >= ' ' && c <= '~') {
      shown += c;
    } else {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    }
  }
  return shown + (text.size() > kShown ? "...\"" : "\"");
}

/// Walks the text line by line, within a line token by token. Empty lines and comments are passed
/// over.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  /// Goes to the next line that says something; false at the end of the text.
  bool next_line() {
    while (!rest_.empty()) {
      const std::size_t end = rest_.find('\n');
      line_ = rest_.substr(0, end);
      rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
      ++line_number_;
      position_ = 0;
      line_ = line_.substr(0, line_.find('#'));
      skip_spaces();
      if (position_ < line_.size()) return true;
    }
    at_end_ = true;
    return false;
  }

  void expect_line(std::string_view wanted) {
    if (!next_line()) fail("the text ends where {} should stand", wanted);
  }

  bool end_of_line() {
    skip_spaces();
    return position_ == line_.size();
  }

  void expect_end_of_line() {
    if (!end_of_line()) fail("{} after the end of the line's meaning", here());
  }

  /// True when the line starts with `word`; moves nothing.
  bool starts_with_word(std::string_view word) {
    skip_spaces();
    const std::string_view rest = line_.substr(position_);
    return rest.starts_with(word) &&
           (rest.size() == word.size() || !is_label_letter(rest[word.size()]));
  }

  bool take(std::string_view mark) {
    skip_spaces();
    if (!line_.substr(position_).starts_with(mark)) return false;
    position_ += mark.size();
    return true;
  }

  bool take_word(std::string_view word) {
    if (!starts_with_word(word)) return false;
    position_ += word.size();
    return true;
  }

  void expect_word(std::string_view word) {
    if (!take_word(word)) fail("{} where \"{}\" should stand", here(), word);
  }

  std::string_view label(std::string_view what) {
    skip_spaces();
    std::size_t end = position_;
    while (end < line_.size() && is_label_letter(line_[end])) ++end;
    const std::string_view word = line_.substr(position_, end - position_);
    if (word.empty()) fail("{} where {} should stand", here(), what);
    if (word.size() > kMaxAlgorithmLetters) {
      fail("{} is longer than {} letters", what, kMaxAlgorithmLetters);
    }
    position_ = end;
    return word;
  }

  int number(std::string_view what, int least, int most) {
    skip_spaces();
    std::size_t end = position_;
    long long value = 0;
    while (end < line_.size() && is_digit(line_[end])) {
      // Stops growing beyond every bound, so that it cannot overflow.
      if (value <= std::numeric_limits<int>::max()) value = value * 10 + (line_[end] - '0');
      ++end;
    }
    if (end == position_) fail("{} where {} should stand", here(), what);
    if (value < least || value > most) {
      fail("{} {} is not within {} to {}", what, quoted(line_.substr(position_, end - position_)),
           least, most);
    }
    position_ = end;
    return static_cast<int>(value);
  }

  std::string here() {
    skip_spaces();
    return position_ == line_.size() ? "end of line" : quoted(line_.substr(position_));
  }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    const std::string what = fmt::format(format, std::forward<Args>(args)...);
    // The end of the text counts as the line after the last one.
    throw Error(Errc::kInvalidArgument, "schedule text, line {}, column {}: {}",
                at_end_ ? line_number_ + 1 : line_number_, at_end_ ? 1 : position_ + 1, what);
  }

 private:
  void skip_spaces() {
    while (position_ < line_.size() && is_space(line_[position_])) ++position_;
  }

  std::string_view rest_;
  std::string_view line_;
  std::size_t line_number_ = 0;
  std::size_t position_ = 0;
  bool at_end_ = false;
};

Operand parse_operand(Reader& reader) {
  if (reader.take_word("in")) return Operand::input();
  if (reader.take_word("out")) return Operand::output();
  return Operand::link(reader.number("an operand (\"in\", \"out\" or a rank)", 0, kMaxRanks - 1));
}

Step parse_step(Reader& reader) {
  Step step;
  if (!reader.take("b")) {
    reader.fail("{} where a step \"b<block>: ...\" or \"rank\" should stand", reader.here());
  }
  step.block = reader.number("a block number", 0, kMaxBlocks - 1);
  if (!reader.take(":")) reader.fail("{} where \":\" should stand", reader.here());
  do {
    step.operands.push_back(parse_operand(reader));
  } while (reader.take("+"));
  if (reader.take("=>")) {
    step.finished = true;
  } else if (!reader.take("->")) {
    reader.fail("{} where \"+\", \"->\" or \"=>\" should stand", reader.here());
  }
  do {
    if (reader.take_word("out")) {
      if (step.write_output) reader.fail("\"out\" stands twice among the destinations");
      step.write_output = true;
    } else {
      step.send.push_back(reader.number("a destination (\"out\" or a rank)", 0, kMaxRanks - 1));
    }
  } while (reader.take(","));
  reader.expect_end_of_line();
  return step;
}

int parse_line_number(Reader& reader, std::string_view word, int least, int most) {
  reader.expect_word(word);
  const int value = reader.number(word, least, most);
  reader.expect_end_of_line();
  return value;
}

/// Everything before the first "rank R channel C" line; leaves the reader on that line.
Schedule parse_head(Reader& reader) {
  Schedule schedule;
  reader.expect_line("\"ropewalk-schedule 1\"");
  parse_line_number(reader, "ropewalk-schedule", 1, 1);

  reader.expect_line("\"collective\"");
  reader.expect_word("collective");
  const std::string_view collective = reader.label("the name of a collective");
  const auto known = parse_collective(collective);
  if (!known) reader.fail("unknown collective {}", quoted(collective));
  schedule.collective = *known;
  reader.expect_end_of_line();

  reader.expect_line("\"algorithm\"");
  reader.expect_word("algorithm");
  schedule.algorithm = std::string(reader.label("the name of an algorithm"));
  reader.expect_end_of_line();

  reader.expect_line("\"ranks\"");
  schedule.num_ranks = parse_line_number(reader, "ranks", 1, kMaxRanks);

  reader.expect_line("\"parts\"");
  if (reader.starts_with_word("root")) {
    schedule.root = parse_line_number(reader, "root", 0, schedule.num_ranks - 1);
    reader.expect_line("\"parts\"");
  } else if (has_root(schedule.collective)) {
    reader.fail("{} where \"root\" should stand", reader.here());
  }
  schedule.parts = parse_line_number(reader, "parts", 1, kMaxBlocks);

  reader.expect_line("\"channel\"");
  do {
    reader.expect_word("channel");
    const int most = kMaxChannels - 1;
    const int channel = reader.number("a channel number", 0, most);
    if (channel != schedule.num_channels()) {
      reader.fail("channel {} where channel {} should stand", channel, schedule.num_channels());
    }
    reader.expect_word("weight");
    schedule.weight.push_back(reader.number("a weight", 1, kMaxWeight));
    reader.expect_end_of_line();
    reader.expect_line("\"rank\"");
  } while (!reader.starts_with_word("rank"));
  return schedule;
}

}  // namespace

Schedule parse(std::string_view text) {
  Reader reader(text);
  Schedule schedule = parse_head(reader);
  std::size_t steps = 0;
  bool more = true;
  // The step lists stand in order, and memory is taken only as they come: a text cannot make
  // the parser take more than a multiple of its own length.
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    std::vector<StepList> strands;
    for (int channel = 0; channel < schedule.num_channels(); ++channel) {
      if (!more) reader.fail("the text ends before \"rank {} channel {}\"", rank, channel);
      reader.expect_word("rank");
      const int read_rank = reader.number("a rank", 0, kMaxRanks - 1);
      reader.expect_word("channel");
      const int read_channel = reader.number("a channel number", 0, kMaxChannels - 1);
      if (read_rank != rank || read_channel != channel) {
        reader.fail("rank {} channel {} where rank {} channel {} should stand", read_rank,
                    read_channel, rank, channel);
      }
      reader.expect_end_of_line();
      StepList& list = strands.emplace_back();
      while ((more = reader.next_line()) && !reader.starts_with_word("rank")) {
        if (++steps > kMaxSteps) reader.fail("more than {} steps", kMaxSteps);
        list.push_back(parse_step(reader));
      }
    }
    schedule.programs.push_back(std::move(strands));
  }
  if (more) reader.fail("{} after the last rank's steps", reader.here());
  return schedule;
}

std::string print(const Step& step) {
  fmt::memory_buffer out;
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "b{}:", step.block);
  const char* before = " ";
  for (const Operand& operand : step.operands) {
    switch (operand.kind) {
      case Operand::Kind::kInput: fmt::format_to(to, "{}in", before); break;
      case Operand::Kind::kOutput: fmt::format_to(to, "{}out", before); break;
      case Operand::Kind::kLink: fmt::format_to(to, "{}{}", before, operand.peer); break;
    }
    before = " + ";
  }
  fmt::format_to(to, " {}", step.finished ? "=>" : "->");
  before = " ";
  if (step.write_output) {
    fmt::format_to(to, " out");
    before = ", ";
  }
  for (const int peer : step.send) {
    fmt::format_to(to, "{}{}", before, peer);
    before = ", ";
  }
  return fmt::to_string(out);
}

std::string print(const Schedule& schedule) {
  std::string text = fmt::format("ropewalk-schedule 1\ncollective {}\nalgorithm {}\nranks {}\n",
                                 name(schedule.collective), schedule.algorithm, schedule.num_ranks);
  if (has_root(schedule.collective) || schedule.root != 0) {
    text += fmt::format("root {}\n", schedule.root);
  }
  text += fmt::format("parts {}\n", schedule.parts);
  for (std::size_t c = 0; c < schedule.weight.size(); ++c) {
    text += fmt::format("channel {} weight {}\n", c, schedule.weight[c]);
  }
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    for (std::size_t channel = 0; channel < schedule.programs[rank].size(); ++channel) {
      text += fmt::format("rank {} channel {}\n", rank, channel);
      for (const Step& step : schedule.programs[rank][channel]) {
        text += "  ";
        text += print(step);
        text += '\n';
      }
    }
  }
  return text;
}

}  // namespace ropewalk::schedule
