#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <limits>

#include "command/errors.hpp"
#include "command/options.hpp"

namespace train_bytes {

namespace {

using annulus_command::InputError;

CLI::Validator number_between(double least, double most) {
  auto const accepts = [least, most](std::string const& text) {
    auto const value = annulus_command::finite_value(text);
    return value && *value >= least && *value <= most;
  };
  std::ostringstream range;
  range << "a number, " << least << " to " << most;
  return annulus_command::accepting(accepts, range.str());
}

void add_number(CLI::App& app, char const* name, double& value, double least, double most, char const* description) {
  app.add_option(name, value, description)->check(number_between(least, most))->type_name("X")->capture_default_str();
}

void add_model(CLI::App& app, TrainingOptions& training) {
  auto const extent = [&](char const* name, Index& value, Index most, char const* description) {
    annulus_command::add_extent(app, name, value, most, description)->capture_default_str();
  };
  extent("--layers", training.shape.layers, 1000, "layers");
  extent("--width", training.shape.width, 1 << 14, "elements of the residual stream, a multiple of 2 * heads");
  extent("--heads", training.shape.heads, 1 << 10, "query heads");
  extent("--kv-heads", training.shape.kv_heads, 1 << 10, "key and value heads, a divisor of the heads");
  extent("--context", training.context, 1 << 20, "bytes of a window, spread over the ranks");
  extent("--batch", training.batch, 1 << 16, "windows of a step");
  add_number(app, "--learning-rate", training.learning_rate, 0, 1, "learning rate after the warm-up");
  app.add_option("--warm-up", training.warm_up_steps, "steps of the warm-up")
      ->check(annulus_command::whole_number(Index{0}, Index{1} << 40))
      ->type_name("N")
      ->capture_default_str();
  add_number(app, "--weight-decay", training.weight_decay, 0, 10, "weight decay of the matrices");
  add_number(app, "--clip", training.longest_gradient, 1e-6, 1e6, "norm to which longer gradients are scaled");
  app.add_option("--seed", training.seed, "seed of the initial weights, the windows and the generated text")
      ->check(annulus_command::whole_number(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max()))
      ->type_name("N")
      ->capture_default_str();
}

void require_consistent(ModelShape const& shape) {
  if (shape.heads % shape.kv_heads != 0)
    throw InputError("--heads " + std::to_string(shape.heads) + " --kv-heads " + std::to_string(shape.kv_heads) +
                     "; accepted: a number of kv heads that divides the number of heads");
  if (shape.width % (2 * shape.heads) != 0)
    throw InputError("--width " + std::to_string(shape.width) + " --heads " + std::to_string(shape.heads) +
                     "; accepted: a width that is a multiple of twice the heads, since rotary positions rotate pairs");
}

/// Throws InputError if an option is given that drawing does not use.
void require_drawing_options(CLI::App const& app) {
  for (CLI::Option const* option : app.get_options())
    if (option->count() > 0 && option->get_name() != "--plot" && option->get_name() != "--svg")
      throw InputError(option->get_name() + " is given with --plot, which trains nothing; accepted with it: --svg");
}

}  // namespace

std::optional<CommandLine> parse(int argc, char const* const* argv, std::filesystem::path const& default_text,
                                 bool prints) {
  CommandLine line;
  line.text = default_text;
  CLI::App app{"Trains a byte-level transformer on a text, with the sequence spread over a ring.", "train_bytes"};
  app.add_option("--ranks", line.ranks, "ranks of the ring; default: the cores, or the processes of mpirun")
      ->check(annulus_command::whole_number(1, annulus_command::most_ranks))
      ->type_name("N");
  annulus_command::add_choice(app, "--comm", line.mpi, annulus_command::Choices<bool>{{"sim", false}, {"mpi", true}},
                              "ranks are threads, or the processes of mpirun")
      ->default_str("sim");
  annulus_command::add_choice(app, "--sharding", line.training.sharding, annulus_command::shardings,
                              "which rank owns which position")
      ->default_str("contiguous");
  annulus_command::add_extent(app, "--reproducible", line.training.leaf, 1 << 20,
                              "the same loss to the bit for any number of ranks, whose shards are made of whole leaves "
                              "of so many positions")
      ->type_name("LEAF");
  annulus_command::add_choice(app, "--dtype", line.in_double,
                              annulus_command::Choices<bool>{{"float32", false}, {"float64", true}},
                              "element type of the model")
      ->default_str("float32");
  CLI::Option* const steps =
      annulus_command::add_extent(app, "--steps", line.budget.steps, Index{1} << 40, "steps of the run");
  steps->capture_default_str();
  app.add_option("--minutes", line.budget.minutes, "train for this time instead of a number of steps")
      ->check(number_between(0.001, 1e6))
      ->type_name("X")
      ->excludes(steps);
  add_model(app, line.training);
  annulus_command::add_file(app, "--text", line.text, "text file, or folder of text files", "text file or folder")
      ->default_str("the repository");
  annulus_command::add_file(app, "--csv", line.csv, "writes the loss of each step");
  CLI::Option* const svg = annulus_command::add_file(app, "--svg", line.svg, "draws the loss curve");
  app.add_option("--plot", line.plot, "draws the curves of these CSV files to --svg, and trains nothing")
      ->type_name("FILE...")
      ->needs(svg);
  CLI::Option* const generate =
      app.add_option("--generate", line.generated_bytes, "prints so many bytes drawn from the trained model")
          ->check(annulus_command::whole_number(Index{1}, Index{1} << 30))
          ->type_name("N");
  app.add_option("--temperature", line.temperature, "of the generated text; 0: always the likeliest byte")
      ->check(number_between(0, 100))
      ->type_name("X")
      ->capture_default_str()
      ->needs(generate);
  app.add_option("--prompt", line.prompt, "what the generated text continues")
      ->check(annulus_command::accepting([](std::string const& text) { return !text.empty(); }, "a text"))
      ->type_name("TEXT")
      ->capture_default_str()
      ->needs(generate);
  try {
    app.parse(argc, argv);
  } catch (CLI::Success const& help) {
    if (prints) app.exit(help);
    return std::nullopt;
  } catch (CLI::ParseError const& error) {
    throw InputError(std::string(error.what()) + "; 'train_bytes --help' lists the accepted options");
  }
  if (!line.plot.empty()) require_drawing_options(app);
  require_consistent(line.training.shape);
  return line;
}

}  // namespace train_bytes
