// Trains a byte-level transformer on a text, with the sequence spread over the ranks of a ring.

#include <annulus/core/default_threads.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "command/errors.hpp"
#include "command/launch.hpp"
#include "command/output_stream.hpp"
#include "command/pending_file.hpp"
#include "command/progress.hpp"
#include "curve.hpp"
#include "generate.hpp"
#include "options.hpp"
#include "picture.hpp"
#include "run.hpp"
#include "text.hpp"

namespace {

using namespace train_bytes;
using namespace annulus_command;

/// Opened before the work, so that a file that cannot be written is refused at once; written after it.
class ResultFile {
 public:
  explicit ResultFile(std::filesystem::path const& path) {
    if (!path.empty()) file_.emplace(path);
  }

  /// write(stream) if the file is wanted.
  template <class Write>
  void finish(Write&& write) {
    if (!file_) return;
    write(file_->stream());
    file_->close();
    file_->commit();
  }

 private:
  std::optional<PendingFile> file_;
};

void draw(CommandLine const& line) {
  std::vector<NamedCurve> curves;
  for (auto const& path : line.plot) curves.push_back({path.stem().string(), read_csv(path)});
  ResultFile(line.svg).finish([&](std::ostream& stream) { write_svg(stream, curves); });
  for (std::size_t i = 1; i < curves.size(); ++i) {
    Difference const largest = largest_difference(curves[0].curve, curves[i].curve);
    print_formatted("%s and %s differ by at most %.1e bits per byte (step %td)\n", curves[0].name.c_str(),
                    curves[i].name.c_str(), largest.bits_per_byte, largest.step);
  }
}

/// The text with control characters escaped, except for line ends and tabs.
std::string printable(std::string_view text) {
  std::string result;
  for (char const c : text)
    result += c == '\n' || c == '\t' ? std::string(1, c) : annulus_command::detail::one_line({&c, 1});
  return result;
}

void print_inputs(CommandLine const& line, Text const& text, int ranks) {
  TrainingOptions const& training = line.training;
  print_formatted("text        %zu bytes for training, %zu for validation\n", text.training.size(),
                  text.validation.size());
  print_formatted("model       %td parameters in %s: %td layers of width %td, %td query and %td kv heads of %td\n",
                  training.shape.parameters(), line.in_double ? "double" : "float", training.shape.layers,
                  training.shape.width, training.shape.heads, training.shape.kv_heads, training.shape.head_dim());
  print_formatted("ring        %d %s, %s\n", ranks, line.mpi ? "MPI processes" : "simulated ranks",
                  training.sharding.name().c_str());
}

template <class T>
void print_results(CommandLine const& line, Trained<T> const& trained) {
  TrainingOptions const& training = line.training;
  double const bytes =
      static_cast<double>(trained.curve.size()) * static_cast<double>(training.batch * training.context);
  print_formatted("training    %zu steps of %td x %td bytes in %.1f s, %.0f bytes/s: from %.4f to %.4f bits per byte\n",
                  trained.curve.size(), training.batch, training.context, trained.seconds, bytes / trained.seconds,
                  trained.curve.front().bits_per_byte, trained.curve.back().bits_per_byte);
  print_formatted("validation  %.4f bits per byte, over %td windows\n", trained.validation, trained.validation_windows);
  if (line.generated_bytes > 0) {
    std::string const generated = generate(trained.parameters, line.prompt, line.generated_bytes, training.context,
                                           line.temperature, training.seed);
    print_formatted("generated   at temperature %g:\n%s\n", line.temperature,
                    printable(line.prompt + generated).c_str());
  }
}

/// Trains, and on the first rank prints and writes the results.
template <class T>
void run(CommandLine const& line) {
  Text text;
  std::optional<ResultFile> csv, svg;
  std::optional<Progress> progress;
  constexpr std::size_t parts = 1000;
  std::size_t done = 0;
  bool is_first = true;
  auto const prepare = [&](int rank, int ranks) {
    is_first = rank == 0;
    if (line.ranks && *line.ranks != ranks)
      throw InputError("--ranks is " + std::to_string(*line.ranks) + ", but MPI connects " + std::to_string(ranks) +
                       "; accepted: the number of processes that mpirun starts, or no --ranks");
    text = read_text(line.text);
    require_long_enough(text, line.training.batch, line.training.context + 1);
    if (!is_first) return;
    csv.emplace(line.csv);
    svg.emplace(line.svg);
    print_inputs(line, text, ranks);
    progress.emplace("training", parts);
  };
  auto const report = [&](double share) {
    auto const now = static_cast<std::size_t>(std::min(share, 1.0) * parts);
    progress->advance(now - done);
    done = now;
  };
  Trained<T> const trained = [&] {
    if (line.mpi) return train_over_mpi<T>(prepare, line.training, line.budget, text, report);
    int const ranks = line.ranks.value_or(annulus::default_threads());
    prepare(0, ranks);
    return train_simulated<T>(ranks, line.training, line.budget, text, report);
  }();
  progress.reset();
  if (!is_first) return;
  csv->finish([&](std::ostream& stream) { write_csv(stream, trained.curve); });
  svg->finish([&](std::ostream& stream) { write_svg(stream, {{"training", trained.curve}}); });
  print_results(line, trained);
}

/// Prints the message of an error on stderr, and returns the exit status. All processes of a job throw the same errors
/// of the command line, and agree on others of bad input, so the first one prints them.
int end_with(std::exception_ptr const& error, bool is_first, bool is_same_on_all) {
  Ending const ending = ending_of(error);
  std::cout.flush();
  if (is_first || !is_same_on_all) std::fprintf(stderr, "train_bytes: %s\n", ending.text());
  return ending.status;
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_descriptors();
  clean_up_on_signals();
  StandardOutput output;
  auto const launch = launch_of([](char const* name) { return std::getenv(name); });
  bool const is_first = !launch || launch->rank == 0;
  try {
    auto const line = parse(argc, argv, TRAIN_BYTES_DEFAULT_TEXT, is_first);
    if (line && launch && launch->processes > 1 && !line->mpi)
      throw InputError(started(*launch) + ", but without --comm mpi each would train the same model; accepted: " +
                       "--comm mpi, or one process");
    if (line && !line->plot.empty())
      draw(*line);
    else if (line)
      line->in_double ? run<double>(*line) : run<float>(*line);
    output.finish();
    return success;
  } catch (AgreedEnding const&) {
    return end_with(std::current_exception(), is_first, true);
  } catch (InputError const&) {
    return end_with(std::current_exception(), is_first, true);
  } catch (...) {
    return end_with(std::current_exception(), is_first, false);
  }
}
