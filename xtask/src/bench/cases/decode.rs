//! A step of text generation: a token goes through the layers of a Llama, and attends to those in a cache of keys and
//! values. Reading the weights takes the time.

use super::super::abi::functions;
use super::super::module::{ContextConfig, Modules, RMSNORM_SWIGLU, Step};
use super::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};

functions!(CacheFunctions of Decoder<'_>:
    nvtex_kv_cache_config_init(config: *mut c_void, size: usize);
    nvtex_kv_cache_create(context: Handle, config: &CacheConfig, stream: Handle) -> Handle;
    nvtex_kv_cache_destroy(cache: Handle);
    nvtex_kv_cache_step(cache: Handle, new_tokens: &usize, batch: usize, stream: Handle);
    nvtex_kv_cache_truncate(cache: Handle, sequence: usize, length: usize);
);

#[repr(C)]
#[derive(Clone, Copy)]
struct CacheConfig {
    struct_size: usize,
    max_batch_size: usize,
    max_sequence_length: usize,
    page_size: usize,
    num_pages: usize,
}

const LAYERS: usize = 4;
const HEADS: usize = 16;
const GROUPS: usize = 4;

struct Decoder<'a> {
    functions: CacheFunctions,
    modules: Modules<'a>,
    context: Handle,
    layers: Vec<Handle>,
    step: Step,
    stream: Handle,
}

impl Decoder<'_> {
    /// Sends new tokens behind `before` others through the layers.
    fn run(&self, before: usize, tokens: usize, [x, y, z]: [&Tensor; 3]) {
        let (cache, mut from, mut to, mut next) = (self.step.kv_cache, x, y, z);
        if before > 0 {
            self.nvtex_kv_cache_truncate(cache, 0, before);
        }
        self.nvtex_kv_cache_step(cache, &tokens, 1, self.stream);
        for layer in &self.layers {
            let (step, m) = (&self.step, &self.modules);
            m.nvtex_module_forward(*layer, &from.h(), 1, &to.h(), 1, step, null_mut(), self.stream);
            (from, to, next) = (to, next, to);
        }
    }
}

impl Drop for Decoder<'_> {
    fn drop(&mut self) {
        self.nvtex_kv_cache_destroy(self.step.kv_cache);
        self.layers.iter().for_each(|layer| self.modules.nvtex_module_destroy(*layer));
        self.modules.nvtex_context_destroy(self.context);
    }
}

/// BF16 weights; the work is reading them.
pub fn step(hidden: usize, ffn: usize, cached: usize) -> Case {
    let head = hidden / HEADS;
    let elements = hidden * (2 * hidden + 2 * GROUPS * head) + 3 * hidden * ffn;
    let moved = (LAYERS * elements * DType::Bf16.size()) as f64;
    let name = format!("decode step, {LAYERS} Llama layers of {hidden}, {cached} cached");
    Case::new(name, Work::Bytes { moved, input: moved }, move |b| {
        let (modules, stream) = (Modules::load(b.api)?, b.stream());
        let context: ContextConfig =
            Modules::defaults(|at, size| modules.nvtex_context_config_init(at, size))?;
        let context = modules.nvtex_context_create(&context);
        let [norm, activation] = RMSNORM_SWIGLU;
        let mut config = modules.layer_config()?;
        config.attention.num_attention_heads = HEADS;
        config.attention.num_gqa_groups = GROUPS;
        config.attention.dtype = DType::Bf16;
        config.mlp.norm.kind = norm;
        config.mlp.hidden_size = hidden;
        config.mlp.ffn_hidden_size = ffn;
        config.mlp.activation = activation;
        config.mlp.bias = false;
        config.mlp.dtype = DType::Bf16;
        let layer = |_| modules.nvtex_transformer_layer_create(context, &config, stream);
        let layers = (0..LAYERS).map(layer).collect();
        let angles = b.tensor(&b.alloc(DType::F32, &[3 * cached, 1, 1, head])?);
        modules.nvtex_rotary_frequencies(angles.h(), null(), stream);
        let mut step = modules.step()?;
        step.rotary_frequencies = angles.h();
        let functions = CacheFunctions::load(&b.api.library)?;
        let mut decoder = Decoder { functions, modules, context, layers, step, stream };
        let config: CacheConfig =
            Modules::defaults(|at, size| decoder.nvtex_kv_cache_config_init(at, size))?;
        let config = CacheConfig { max_batch_size: 1, max_sequence_length: 2 * cached, ..config };
        decoder.step.kv_cache = decoder.nvtex_kv_cache_create(context, &config, stream);
        b.api.take_error()?;
        let states = |rows: usize| -> Result<[Tensor; 3]> {
            let one =
                || -> Result<Tensor> { Ok(b.tensor(&b.random(DType::Bf16, &[rows, 1, hidden])?)) };
            Ok([one()?, one()?, one()?])
        };
        decoder.run(0, cached, states(cached)?.each_ref());
        b.api.take_error()?;
        let token = states(1)?;
        Ok(Box::new(move || {
            let _ = &angles;
            decoder.run(cached, 1, token.each_ref());
        }))
    })
}
