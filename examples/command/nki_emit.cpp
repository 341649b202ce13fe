#include <algorithm>
#include <annulus/nki/print/to_python.hpp>
#include <iostream>
#include <span>

#include "embedded_texts.hpp"
#include "nki_parts.hpp"

namespace annulus_command {

namespace {

/// Mask tables above this size, over all ranks of a ring, are not written but described in the README.
constexpr std::size_t most_mask_bytes = std::size_t{256} << 20;

constexpr char const *readme = "README.md", *problem_file = "problem.py", *requirements = "requirements.txt",
                     *model_folder = "nki_model";

/// Python files that are the same for every problem.
constexpr std::pair<char const*, std::string_view> programs[] = {{"check.py", nki_check_text},
                                                                 {"run_torch.py", nki_run_torch_text},
                                                                 {"run_jax.py", nki_run_jax_text},
                                                                 {"simulate.py", nki_simulate_text}};

}  // namespace

NkiMaskFiles nki_mask_files(NkiProblem const& problem, NkiKernel const& kernel) {
  NkiMaskFiles files{.input = problem.like_nkilib ? "" : mask_input_of(kernel.program())};
  if (files.input.empty()) return files;
  auto const ranks = static_cast<std::size_t>(problem.spec.ranks);
  annulus::nki::Buffer const& buffer = kernel.program().buffer(kernel.program().find(files.input));
  files.shape.assign(buffer.shape.begin(), buffer.shape.end());
  files.bytes = ranks * static_cast<std::size_t>(buffer.bytes());
  files.written = files.bytes <= most_mask_bytes;
  if (!files.written) return files;
  // The name carries the fingerprint, so that a table is not taken for that of another mask.
  std::string const stem =
      kernel.program().name + "." + files.input + "." + kernel.program().mask_fingerprint.substr(0, 8);
  if (files.input == "mask_offsets")
    files.names.push_back(stem + ".npy");
  else
    for (std::size_t rank = 0; rank < ranks; ++rank)
      files.names.push_back(stem + ".rank" + std::to_string(rank) + ".npy");
  return files;
}

namespace {

/// True for the names of all kernels that some options make.
bool is_module(std::string const& name) {
  constexpr std::string_view modules[] = {"ring_attention_fwd.py", "ring_attention_fwd_stationary.py",
                                          "ring_attention_bwd.py", "ring_attention_spmd_fwd.py",
                                          "ring_attention_spmd_bwd.py"};
  return std::ranges::find(modules, name) != std::end(modules);
}

std::string module_of(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel) {
  return nki_function(options, problem, kernel).name + ".py";
}

std::string module_text(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel) {
  if (options.plain) return nki_plain_text(options, problem, kernel);
  if (problem.like_nkilib) return nkilib_text(options, problem, kernel);
  return annulus::nki::to_python(kernel.program(), options.spelling(), nki_notes(problem, kernel));
}

std::vector<std::string> names_of_files(NkiOptions const& options, NkiProblem const& problem,
                                        std::vector<NkiKernel> const& kernels) {
  std::vector<std::string> names{readme, problem_file, requirements};
  for (auto const& [name, text] : programs) names.emplace_back(name);
  for (NkiKernel const& kernel : kernels) {
    names.push_back(module_of(options, problem, kernel));
    NkiMaskFiles const mask = nki_mask_files(problem, kernel);
    names.insert(names.end(), mask.names.begin(), mask.names.end());
  }
  return names;
}

std::vector<std::string> names_of_model() {
  std::vector<std::string> names;
  for (auto const& [name, text] : nki_model_files) names.emplace_back(name);
  return names;
}

std::string requirements_text(annulus::nki::Spelling const& spelling) {
  return "# For " + versions_of(spelling) +
         ". The Neuron packages are in the vendor's index: this page has its pip option\n"
         "# (--extra-index-url), and what a device needs besides:\n"
         "# https://awsdocs-neuron.readthedocs-hosted.com/en/latest/nki/get-started/setup-env.html\n"
         "numpy\nml_dtypes\nnki>=" +
         std::string(spelling.version) + (spelling.launch_grid ? ",<0.7" : "") +
         "\n# run_torch.py\ntorch-neuronx\n# run_jax.py\njax-neuronx\n";
}

std::vector<std::filesystem::path> files_read_by(NkiOptions const& options) {
  return {options.attend.q, options.attend.k, options.attend.v, options.attend.dout, options.sinks, options.bias};
}

}  // namespace

NkiFolder::NkiFolder(NkiOptions const& options, NkiProblem const& problem, std::vector<NkiKernel> const& kernels)
    : folder_(options.emit, names_of_files(options, problem, kernels), files_read_by(options)),
      model_(options.emit / model_folder, names_of_model(), files_read_by(options)) {
  for (std::string const& name : names_of_files(options, problem, kernels)) paths_.push_back(folder_ / name);
  for (std::string const& name : names_of_model()) paths_.push_back(model_ / name);
}

void NkiFolder::write(NkiOptions const& options, NkiProblem const& problem, std::vector<NkiKernel> const& kernels) {
  std::vector<PendingFile> files;
  std::string list;
  auto const add = [&](std::filesystem::path const& path, std::string_view text) {
    PendingFile& file = files.emplace_back(path);
    file.stream() << text;
    file.close();
  };
  auto const add_text = [&](std::string const& name, std::string_view text) {
    add(folder_ / name, text);
    list += (folder_ / name).string() + "\n";
  };
  auto const add_array = [&](std::string const& name, std::vector<std::size_t> const& shape,
                             std::vector<float> const& values) {
    files.push_back(pending_npy(folder_ / name, shape, std::span<float const>(values)));
    list += (folder_ / name).string() + " " + shape_text(shape) + " f4\n";
  };
  for (NkiKernel const& kernel : kernels) {
    add_text(module_of(options, problem, kernel), module_text(options, problem, kernel));
    NkiMaskFiles const mask = nki_mask_files(problem, kernel);
    if (mask.names.empty()) continue;
    if (mask.input == "mask_offsets") {
      std::vector<float> all;
      for (int rank = 0; rank < problem.spec.ranks; ++rank) {
        std::vector<float> const table = mask_table(problem, kernel, rank);
        all.insert(all.end(), table.begin(), table.end());
      }
      std::vector<std::size_t> shape = mask.shape;
      shape.insert(shape.begin(), static_cast<std::size_t>(problem.spec.ranks));
      add_array(mask.names.front(), shape, all);
    } else {
      for (int rank = 0; rank < problem.spec.ranks; ++rank)
        add_array(mask.names[static_cast<std::size_t>(rank)], mask.shape, mask_table(problem, kernel, rank));
    }
  }
  for (auto const& [name, text] : programs) add_text(name, text);
  for (auto const& [name, text] : nki_model_files) add(model_ / std::string(name), text);
  list += (folder_ / model_folder).string() + " " + std::to_string(std::size(nki_model_files)) + " files\n";
  add_text(problem_file, nki_problem_text(options, problem, kernels));
  add_text(requirements, requirements_text(options.spelling()));
  add_text(readme, nki_readme(options, problem, kernels));
  commit_together(files);
  folder_.remove_if([&, kept = names_of_files(options, problem, kernels)](std::string const& name) {
    bool const ours = name.starts_with("ring_attention_") &&
                      (name.ends_with(".npy") ? name.find(".mask_") != std::string::npos : is_module(name));
    return ours && std::ranges::find(kept, name) == kept.end();
  });
  std::cout << list;
}

}  // namespace annulus_command
