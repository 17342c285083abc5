// Runs an AOTInductor package on the CPU, as 'togi export NAME.togi --to pt2' writes it:
//
//   run_pt2 model.pt2 OUT  float32:3x8:x.bin  int64:3:lengths.bin ...
//
// Each input is a dtype, its sizes and a file of raw values (tensor.contiguous().numpy().tofile(file)), in the order of
// export.json. Output i goes to OUT/output_i.bin in the same form, and one line "dtype:sizes" of each to standard output.

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

const std::map<std::string, at::ScalarType> kDtypes = {
    {"float32", at::kFloat}, {"float64", at::kDouble}, {"float16", at::kHalf}, {"bfloat16", at::kBFloat16},
    {"int64", at::kLong},    {"int32", at::kInt},      {"int16", at::kShort},  {"int8", at::kChar},
    {"uint8", at::kByte},    {"bool", at::kBool},
};

at::Tensor read(const std::string& described) {
  std::stringstream parts(described);
  std::string dtype, sizes, path, size;
  std::getline(parts, dtype, ':');
  std::getline(parts, sizes, ':');
  std::getline(parts, path);
  std::vector<int64_t> shape;
  for (std::stringstream rest(sizes); std::getline(rest, size, 'x');) shape.push_back(std::stoll(size));
  at::Tensor tensor = at::empty(shape, kDtypes.at(dtype));
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() != static_cast<std::streamoff>(tensor.nbytes()))
    throw std::runtime_error(path + " does not hold " + std::to_string(tensor.nbytes()) + " bytes, as " + described + " needs");
  file.seekg(0).read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  return tensor;
}

void write(const at::Tensor& given, const std::string& path) {
  const at::Tensor tensor = given.contiguous();
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  if (!file.flush()) throw std::runtime_error(path + " cannot be written");
  for (const auto& [name, dtype] : kDtypes)
    if (dtype == tensor.scalar_type()) std::cout << name << ':';
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) std::cout << (dim ? "x" : "") << tensor.size(dim);
  std::cout << '\n';
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::cerr << "usage: run_pt2 model.pt2 OUT dtype:sizes:file ...\n";
    return 2;
  }
  try {
    const c10::InferenceMode guard;
    std::vector<at::Tensor> inputs;
    for (int i = 3; i < count; ++i) inputs.push_back(read(arguments[i]));
    // Inputs must be contiguous and of the dtypes and sizes in export.json: the compiled code does not check them.
    torch::inductor::AOTIModelPackageLoader model(arguments[1]);
    const std::vector<at::Tensor> outputs = model.run(inputs);
    for (size_t i = 0; i < outputs.size(); ++i)
      write(outputs[i], std::string(arguments[2]) + "/output_" + std::to_string(i) + ".bin");
  } catch (const c10::Error& error) {
    std::cerr << "run_pt2: " << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "run_pt2: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
