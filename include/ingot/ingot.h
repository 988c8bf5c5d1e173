/* ingot.h: the C interface of ingot, offline conversion of checkpoints.
 *
 * The command line runs the same functions, so that both write the same bytes.
 *
 * Calls. A function that can fail returns INGOT_OK or the code of a fault, and then changes none of
 * its results; ingot_last_error() tells of the fault. No exception leaves the library, and it
 * prints nothing. Memory that a function gives back belongs to the handle that it came from, unless
 * the function says otherwise.
 *
 * Options are the text of a JSON object, or NULL for none. Its keys are the flags of the command of
 * the same name, without the dashes: {"to": "nvfp4", "max-shard-size": "5GB"}. The value of a flag
 * is a text or a number, that of a flag without a value is true or false, and that of a flag that
 * may be repeated is a list. Recipes (docs/recipes.md) are such objects too.
 *
 * Structs begin with their size, which the caller sets before the call: a later version may add
 * members at the end, and fills in those for which there is room.
 *
 * Threads. Functions may be called from any thread, with one handle from one thread at a time;
 * only reading an ingot_checkpoint, and giving tensors to an encoder or a writer, are safe from
 * many. After fork() every function fails in the child with INGOT_UNSUPPORTED, since threads of
 * the library are in the parent only: begin to use the library in the child, or start the child
 * with exec.
 */
#ifndef INGOT_INGOT_H
#define INGOT_INGOT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define INGOT_API __attribute__((visibility("default")))
#else
#define INGOT_API
#endif

/* The interface that this header declares. It grows when a function is added, and the major number
 * of the shared library changes when one is taken away. */
#define INGOT_ABI_VERSION 1

/* Kinds of faults. A value never changes its meaning. */
enum ingot_code {
  INGOT_OK = 0,
  INGOT_INVALID_ARGUMENT, /* an option contradicts itself or matches nothing */
  INGOT_NOT_FOUND,        /* a file, tensor or key that should be there is not */
  INGOT_PERMISSION,       /* the system refused access */
  INGOT_NO_SPACE,         /* the file system is, or would become, full */
  INGOT_IO,               /* any other failure of a read or write */
  INGOT_CORRUPT,          /* bytes that violate their format */
  INGOT_LIMIT,            /* a number beyond the format or the memory budget */
  INGOT_DUPLICATE,        /* two things of one name */
  INGOT_UNKNOWN_TENSOR,   /* a name that the family's grammar does not have */
  INGOT_MISSING_TENSOR,   /* a tensor that the family, index or config promises */
  INGOT_SHAPE_MISMATCH,   /* a shape that contradicts config, scale or partner */
  INGOT_DTYPE_MISMATCH,   /* a dtype that the encoding cannot have */
  INGOT_BAD_SCALE,        /* a scale that is zero, negative, infinite or NaN */
  INGOT_NON_FINITE,       /* a NaN or infinite value where none may be */
  INGOT_UNSUPPORTED,      /* legal, but not something that this version can do */
  INGOT_EXISTS,           /* the target is in the way */
  INGOT_MISMATCH,         /* contents differ from those that were promised */
  INGOT_INTERRUPTED,      /* the caller asked to stop */
  INGOT_INTERNAL          /* a fault of the library */
};

/* INGOT_ABI_VERSION of the library. */
INGOT_API int ingot_abi_version(void);
/* The version of ingot: "0.1.0". */
INGOT_API const char* ingot_version(void);

/* A fault. Texts are "" where there is none. */
struct ingot_error {
  size_t size;
  int code;
  const char* code_name; /* "not-found": as the command line has it */
  const char* file;
  const char* tensor;
  const char* message; /* the fact and the remedy */
  const char* text;    /* all of this, in a line or more */
};
/* Fills in the last fault of this thread; its texts live until the next fault of the thread. The
 * code is INGOT_OK where there was none. Never fails. */
INGOT_API void ingot_last_error(struct ingot_error* error);

/* Frees a text that a function gave to the caller. NULL is allowed here, and wherever a handle is
 * freed. */
INGOT_API void ingot_free_text(char* text);

/* Checkpoints. */

typedef struct ingot_checkpoint ingot_checkpoint;

/* Opens a directory with a checkpoint, whole or in slices, one .safetensors file, or a model by its
 * name in the hub's cache: reads the config, the index and the headers, and no weights. Options:
 * family, family-file, config (ingot inspect). */
INGOT_API int ingot_open(const char* path, const char* options, ingot_checkpoint** checkpoint);
INGOT_API void ingot_close(ingot_checkpoint* checkpoint);

/* A weight of the model, made of one or more stored tensors. */
struct ingot_tensor {
  size_t size;
  const char* name;
  const char* role;   /* "expert-up"; ingot list roles */
  const char* scheme; /* "bf16", "fp8-block"; ingot list schemes */
  const uint64_t* shape;
  size_t n_dims;
  int64_t layer, expert; /* -1: none */
  size_t n_parts;
};
/* A stored tensor: one part of a weight. */
struct ingot_part {
  size_t size;
  const char* kind; /* "weight", "scale" and so on */
  const char* name;
  const char* dtype; /* as safetensors spells it: "BF16" */
  const uint64_t* shape;
  size_t n_dims;
  uint64_t n_bytes;
  const char* path; /* of the file that holds it in one stretch, or NULL: then it is read */
  uint64_t offset;  /* there, as long as fstat() says of the file what follows */
  uint64_t device, inode, file_bytes;
  int64_t modified_ns; /* st_mtim, in nanoseconds */
  /* st_ctim and st_nlink: another time with the same number of links is a file that was written to,
   * and its st_mtim put back. */
  int64_t changed_ns;
  uint64_t n_links;
};

INGOT_API size_t ingot_tensor_count(const ingot_checkpoint* checkpoint);
/* Tensors are in the order of the files. INGOT_INVALID_ARGUMENT for an index that there is not. */
INGOT_API int ingot_tensor_info(const ingot_checkpoint* checkpoint, size_t tensor,
                                struct ingot_tensor* info);
INGOT_API int ingot_part_info(const ingot_checkpoint* checkpoint, size_t tensor, size_t part,
                              struct ingot_part* info);
/* Reads n_bytes of a stored tensor, from `offset` within it, as they are stored. This and the next
 * fail with INGOT_MISMATCH where a file was replaced or written to after ingot_open(). */
INGOT_API int ingot_read_stored(const ingot_checkpoint* checkpoint, size_t tensor, size_t part,
                                uint64_t offset, void* bytes, uint64_t n_bytes);
/* Decodes a whole weight, row-major; n_values must be the product of its shape. On `threads`
 * threads, 0: every processor. INGOT_UNSUPPORTED for dtypes that are only copied. */
INGOT_API int ingot_read_decoded(const ingot_checkpoint* checkpoint, size_t tensor, float* values,
                                 uint64_t n_values, size_t threads);
/* The same for n_rows along the first dimension of a weight that has two or more, from `first_row`
 * on: no other rows are read. */
INGOT_API int ingot_read_rows(const ingot_checkpoint* checkpoint, size_t tensor, uint64_t first_row,
                              uint64_t n_rows, float* values, uint64_t n_values, size_t threads);

/* Conversions. */

typedef struct ingot_plan ingot_plan;

/* Plans a conversion of `source` into the directory `output`: reads headers and writes nothing.
 * Options: those of ingot convert, or a recipe. */
INGOT_API int ingot_plan_conversion(const char* source, const char* output, const char* options,
                                    ingot_plan** plan);
/* The same for a model that is in memory, of its config.json and shapes only. `shapes` is a JSON
 * object as the header of a safetensors file: {"NAME": {"dtype": "BF16", "shape": [4, 8]}}. The
 * options are those that decide which tensors the output has, and mem-limit. */
INGOT_API int ingot_plan_shapes(const char* config, const char* shapes, const char* options,
                                ingot_plan** plan);
INGOT_API void ingot_plan_free(ingot_plan* plan);
/* The plan as JSON: `tensors` (name, role, action, scheme), `files`, bytes_in, bytes_out, the
 * `config` of the output, warnings; of shapes also `sets`, the names of tensors that are encoded
 * together. The text belongs to the plan; NULL for NULL. */
INGOT_API const char* ingot_plan_json(const ingot_plan* plan);

/* How a job tells of itself, and is stopped. */
struct ingot_run {
  size_t size;
  /* Called now and then, by one thread at a time, which may be none of the caller's; NULL: never.
   * `phase` is "" while weights are converted; `total` is 0 where it is not known. */
  void (*progress)(void* context, const char* phase, uint64_t done, uint64_t total);
  void* context;
  /* Where it is not NULL, and becomes other than 0, the job ends with INGOT_INTERRUPTED; a signal
   * handler may set it. A conversion can be continued then, by the option resume. */
  const volatile int* stop;
};
/* Runs a conversion; `run` may be NULL. `report` gets the document of ingot_command("convert") with
 * the options of the plan, unless it is NULL. */
INGOT_API int ingot_plan_run(ingot_plan* plan, const struct ingot_run* run, char** report);

/* Commands, and their reports: JSON for ingot_free_text(), as --json of the command prints it. A
 * report is given where the call fails, too: it says why. */

/* Runs any command that has a document: "convert", "verify", "compare", "list" and so on. Options:
 * all of the command, with the words at their places by their names in its help ("input" and
 * "output" of convert), but for those about the terminal and a launcher (quiet, progress, json,
 * mpi). `run` and `report` may be NULL. A gate that is not passed is no failure of the call, except
 * where it keeps a job from publishing its output: INGOT_MISMATCH. The command "options" lists the
 * options of all others. */
INGOT_API int ingot_command(const char* command, const char* options, const struct ingot_run* run,
                            char** report);

/* A summary of a checkpoint, or with the options `pattern` and `tensors` its tensors. */
INGOT_API int ingot_inspect(const ingot_checkpoint* checkpoint, const char* options, char** report);
/* Finds everything wrong with a directory: `errors` and `warnings` of the report are lists of faults,
 * and `passed` is the verdict. Options: those of ingot check. `run` may be NULL. */
INGOT_API int ingot_check(const char* path, const char* options, const struct ingot_run* run,
                          char** report);
/* Compares `output` with its source, or measures `source` where `output` is NULL; `passed` in the
 * report is the verdict. Options: those of ingot verify. */
INGOT_API int ingot_verify(const char* source, const char* output, const char* options,
                           const struct ingot_run* run, char** report);

/* Encoding in memory. */

typedef struct ingot_encoder ingot_encoder;

/* A tensor in memory; that of an encoder is its until the next call of this thread. */
struct ingot_encoded {
  size_t size;
  const char* name;
  const char* dtype;
  const uint64_t* shape;
  size_t n_dims;
  const void* bytes;
  uint64_t n_bytes;
};
/* `plan` is one of ingot_plan_shapes(), must outlive the encoder, and can have
 * no other one: INGOT_EXISTS. */
INGOT_API int ingot_encoder_new(ingot_plan* plan, ingot_encoder** encoder);
INGOT_API void ingot_encoder_free(ingot_encoder* encoder);
/* Gives a tensor of the model, whose dtype and shape must be those of the plan
 * (INGOT_DTYPE_MISMATCH, INGOT_SHAPE_MISMATCH). `dtype` is as safetensors spells it: "BF16".
 * Unsigned words ("U16", "U8") are taken for every dtype of their width, as arrays have them that
 * know no BF16 or FP8; of F4 a byte has two elements. `n_made` gets the number of tensors of the
 * output that are complete with it, with the bytes that a conversion writes: 0 until all tensors
 * have come that share a scale, or a tensor of the output. The encoder holds these until then.
 * Several threads may give tensors: what they complete is encoded at the same time.
 * Where their values cannot be encoded the call fails, and they may be given again. */
INGOT_API int ingot_encoder_put_array(ingot_encoder* encoder, const char* name, const char* dtype,
                                      const uint64_t* shape, size_t n_dims, const void* bytes,
                                      uint64_t n_bytes, size_t* n_made);
/* The same, for bytes of which the caller knows dtype and shape: only their number is compared. */
INGOT_API int ingot_encoder_put(ingot_encoder* encoder, const char* name, const void* bytes,
                                uint64_t n_bytes, size_t* n_made);
/* The tensor of this index, of those that the last ingot_encoder_put() of this thread completed. */
INGOT_API int ingot_encoder_made(const ingot_encoder* encoder, size_t index,
                                 struct ingot_encoded* tensor);
/* INGOT_MISSING_TENSOR while tensors of the plan have not come. */
INGOT_API int ingot_encoder_finish(const ingot_encoder* encoder);

/* Writing a checkpoint. */

typedef struct ingot_writer ingot_writer;

/* Begins a conversion of a model that is in memory into the directory `output`. `source` is a
 * directory with the model's config.json, the files that go beside the weights, and weights files of
 * which only the headers are read: the rest may be holes, as ftruncate() makes them. Options: those
 * of ingot convert, without those that need a source on a disk (resume, part, consume-source) or
 * read it again (verify, lossless-only, dry-run, explain). Half of mem-limit is for tensors that
 * wait. `run` may be NULL; its receivers are called until the writer is freed. */
INGOT_API int ingot_writer_open(const char* source, const char* output, const char* options,
                                const struct ingot_run* run, ingot_writer** writer);
/* Gives a tensor, in any order; as ingot_encoder_put_array(). The bytes are the caller's again when
 * it returns. It waits while as many as fit are being converted, and fails where the job has. */
INGOT_API int ingot_writer_put(ingot_writer* writer, const char* name, const char* dtype,
                               const uint64_t* shape, size_t n_dims, const void* bytes,
                               uint64_t n_bytes);
/* Publishes the output, when all tensors were given: INGOT_MISSING_TENSOR. `report` gets the
 * document of the conversion, unless it is NULL. */
INGOT_API int ingot_writer_finish(ingot_writer* writer, char** report);
/* Ends a job that has not finished; it publishes nothing. */
INGOT_API void ingot_writer_free(ingot_writer* writer);
/* All of it in one call, for a model that is whole in the memory of the caller: `tensors` has all
 * tensors of `source`, which is that of ingot_writer_open(). They are read where they are, as often
 * as need be, so that options may read them again. */
INGOT_API int ingot_convert_memory(const char* source, const char* output, const char* options,
                                   const struct ingot_encoded* tensors, size_t n_tensors,
                                   const struct ingot_run* run, char** report);

#ifdef __cplusplus
}
#endif

#endif
