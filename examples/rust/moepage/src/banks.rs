//! Experts that the caller holds, in memory, behind a callback or in files, as a model.
use std::any::Any;
use std::ffi::CString;
use std::ops::Range;
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use moepage_sys as sys;

use crate::error::{Error, Result, Status};
use crate::gate::lock;
use crate::handle::called_back;
use crate::types::{
    c_path, c_text, count, pointer_or_null, slice_at, Dtype, Element, ExpertActivation, Role,
};

/// One tensor that every expert has.
#[derive(Clone, Copy)]
pub struct ExpertTensor(pub(crate) sys::moepage_expert_tensor);

impl ExpertTensor {
    /// A tensor of this shape, row-major, of at most four dimensions.
    pub fn new(role: Role, dtype: Dtype, shape: &[u64]) -> Self {
        let mut raw = sys::moepage_expert_tensor {
            role: role.code(),
            dtype: dtype.code(),
            rank: shape.len() as u32,
            ..Default::default()
        };
        // A rank that is too large stays so: opening the model refuses it.
        let n = shape.len().min(sys::MOEPAGE_MAX_RANK);
        raw.shape[..n].copy_from_slice(&shape[..n]);
        ExpertTensor(raw)
    }

    /// What it is for, if this crate knows.
    pub fn role(&self) -> Option<Role> {
        Role::from_code(self.0.role)
    }

    /// Element type, if this crate knows.
    pub fn dtype(&self) -> Option<Dtype> {
        Dtype::from_code(self.0.dtype)
    }

    /// Row-major.
    pub fn shape(&self) -> &[u64] {
        &self.0.shape[..sys::MOEPAGE_MAX_RANK.min(self.0.rank as usize)]
    }

    /// Its size, of a tensor that a model told.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Its place inside an expert's slot, of a tensor that a model told.
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    fn needed_bytes(&self) -> Result<usize> {
        needed_bytes(self.dtype(), self.shape())
    }
}

impl std::fmt::Debug for ExpertTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExpertTensor")
            .field("role", &self.role())
            .field("dtype", &self.dtype())
            .field("shape", &self.shape())
            .field("bytes", &self.bytes())
            .field("offset", &self.offset())
            .finish()
    }
}

fn needed_bytes(dtype: Option<Dtype>, shape: &[u64]) -> Result<usize> {
    let block = dtype.and_then(|dtype| dtype.size().map(|size| (1, size)).or(dtype.block()));
    let (weights, bytes) = block.ok_or_else(|| {
        Error::new(Status::Unsupported, format!("tensors of banks cannot be of {dtype:?}"))
    })?;
    let cut = shape.last().map_or(weights > 1, |extent| extent % weights != 0);
    if cut {
        return Err(Error::argument(format!(
            "a tensor of shape {shape:?} does not consist of blocks of {weights} weights"
        )));
    }
    shape
        .iter()
        .try_fold(1u64, |n, &extent| n.checked_mul(extent))
        .and_then(|n| (n / weights).checked_mul(bytes))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| Error::argument(format!("a tensor of shape {shape:?} has no size")))
}

/// Bytes in host memory, and a share in whatever owns them. Cloning and slicing copy nothing.
///
/// Models hold on to what they page from: the library's threads may read it as long as the model is
/// open, even if its Rust value was leaked. Hence bytes are shared, and not borrowed.
#[derive(Clone)]
pub struct Bytes {
    owner: Option<Arc<dyn Any + Send + Sync>>,
    data: *const u8,
    len: usize,
}

// SAFETY: bytes that are only read, and an owner that is itself for any thread.
unsafe impl Send for Bytes {}
// SAFETY: the same.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// The bytes of whatever can show some: a memory map, a shared vector.
    pub fn shared<T: AsRef<[u8]> + Send + Sync + 'static>(owner: Arc<T>) -> Self {
        let (data, len) = {
            let bytes: &[u8] = (*owner).as_ref();
            (bytes.as_ptr(), bytes.len())
        };
        Bytes { owner: Some(owner), data, len }
    }

    /// The numbers of a vector.
    pub fn from_elements<T: Element>(elements: Vec<T>) -> Self {
        let owner = Arc::new(elements);
        let (data, len) = (owner.as_ptr().cast(), std::mem::size_of_val(&owner[..]));
        Bytes { owner: Some(owner), data, len }
    }

    /// Bytes that somebody else owns.
    ///
    /// # Safety
    /// They are readable, and nobody writes them, until every model that was opened with them has
    /// been closed: dropped, that is, and not leaked, nor anything that stands on it.
    pub unsafe fn from_raw_parts(data: *const u8, len: usize) -> Self {
        Bytes { owner: None, data, len }
    }

    /// A part of them, one expert's of a fused bank for example.
    ///
    /// # Panics
    /// If the range is not inside.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let part = &self.as_slice()[range];
        Bytes { owner: self.owner.clone(), data: part.as_ptr(), len: part.len() }
    }

    /// All of them.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the owner keeps them readable and unwritten, or the caller of `from_raw_parts`.
        unsafe { slice_at(self.data, self.len) }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from_elements(bytes)
    }
}

impl From<&'static [u8]> for Bytes {
    fn from(bytes: &'static [u8]) -> Self {
        Bytes { owner: None, data: bytes.as_ptr(), len: bytes.len() }
    }
}

/// What a [`ReadExpert`] is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertPart {
    /// MoE layer.
    pub layer: u32,
    /// Expert of that layer.
    pub expert: u32,
    /// Index into [`Banks::tensors`], or into a layer's of [`Banks::layer_tensors`].
    pub tensor: u32,
    /// Where in the tensor to begin.
    pub offset: u64,
}

/// What a [`ReadExpert`] may fail with.
pub type ReadError = Box<dyn std::error::Error + Send + Sync>;

/// Brings experts' bytes from wherever they are. Called from the library's threads, several at a
/// time where a pool has a host tier. It may block, and must not call into the library.
///
/// An error, or a panic, fails the load that wanted the bytes: the call that waits for it returns
/// [`Status::Callback`] with the error's text, and no part of the expert is ever served.
pub trait ReadExpert: Send + Sync {
    /// Fills `out`.
    fn read(&self, part: ExpertPart, out: &mut [u8]) -> std::result::Result<(), ReadError>;
}

impl<F> ReadExpert for F
where
    F: Fn(ExpertPart, &mut [u8]) -> std::result::Result<(), ReadError> + Send + Sync,
{
    fn read(&self, part: ExpertPart, out: &mut [u8]) -> std::result::Result<(), ReadError> {
        self(part, out)
    }
}

/// Where experts come from.
pub enum Experts {
    /// Each tensor's bytes: `[moe_layers][experts][tensors]`, flat.
    Memory(Vec<Bytes>),
    /// A callback.
    Read(Box<dyn ReadExpert>),
    /// Files of any format, in which a tensor's bytes are those that a slot is to hold. They stay
    /// open until the model is closed; a load from one that has changed is [`Status::Io`].
    Files {
        /// Their paths.
        paths: Vec<PathBuf>,
        /// Where each tensor begins: `[moe_layers][experts][tensors]`, flat.
        places: Vec<FilePlace>,
    },
}

/// Where a tensor of an expert begins in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilePlace {
    /// Index into the paths.
    pub file: u32,
    /// In bytes.
    pub offset: u64,
}

/// A tensor that is never paged.
#[derive(Clone)]
pub struct DenseTensor {
    /// Its name in a checkpoint.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Row-major.
    pub shape: Vec<u64>,
    /// Aligned for its type.
    pub data: Bytes,
}

/// A model without a checkpoint. What is empty or zero is left out.
#[derive(Default)]
pub struct Banks {
    /// Layers with routed experts.
    pub moe_layers: u32,
    /// Routed experts per MoE layer.
    pub experts: u32,
    /// Experts per token.
    pub top_k: u32,
    /// H.
    pub hidden: u32,
    /// I.
    pub expert_intermediate: u32,
    /// What every expert consists of.
    pub tensors: Vec<ExpertTensor>,
    /// The same for each MoE layer, in place of `tensors`, where types differ from layer to layer;
    /// roles and shapes must not.
    pub layer_tensors: Vec<Vec<ExpertTensor>>,
    /// Its numbers.
    pub source: Experts,
    /// Such as `qwen3_moe`.
    pub architecture: Option<String>,
    /// The text of a config.json.
    pub config_json: Option<String>,
    /// The transformer layer of each MoE layer, ascending; empty = 0, 1, 2 ...
    pub layer_index: Vec<i32>,
    /// Transformer layers; 0 = `moe_layers`.
    pub layers: u32,
    /// Always-active experts.
    pub shared_experts: u32,
    /// Tokens that the model knows.
    pub vocabulary: u32,
    /// Tensors that are never paged.
    pub dense: Vec<DenseTensor>,
    /// Between the projections.
    pub activation: ExpertActivation,
    /// Of [`ExpertActivation::SwigluClamped`]; 0 = 1.702.
    pub activation_alpha: f32,
    /// Of the same; 0 = 7.
    pub activation_limit: f32,
}

impl Default for Experts {
    fn default() -> Self {
        Experts::Memory(Vec::new())
    }
}

/// What a panic left behind.
pub(crate) type Panic = Box<dyn Any + Send>;

/// The last failure of a callback.
#[derive(Default)]
struct Failure {
    text: String,
    panic: Option<Panic>,
}

/// What the library calls back into.
pub(crate) struct Reader {
    read: Box<dyn ReadExpert>,
    failure: Mutex<Failure>,
}

impl Reader {
    /// What the callback said when it failed last.
    pub(crate) fn failure_text(&self) -> String {
        lock(&self.failure).text.clone()
    }

    pub(crate) fn take_panic(&self) -> Option<Panic> {
        lock(&self.failure).panic.take()
    }

    fn run(&self, part: ExpertPart, out: &mut [u8]) -> i32 {
        // A reader that has panicked is asked again; whether it still works is for it to say.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.read.read(part, out).map_err(|error| error.to_string())
        }));
        let (text, panic) = match outcome {
            Ok(Ok(())) => return 0,
            Ok(Err(text)) => (text, None),
            Err(panic) => (format!("the callback panicked: {}", panic_text(&*panic)), Some(panic)),
        };
        let before = std::mem::replace(&mut *lock(&self.failure), Failure { text, panic });
        drop_quietly(before);
        1
    }
}

/// What a panic left behind may panic itself when it is dropped.
pub(crate) fn drop_quietly<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        std::mem::forget(panic);
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

unsafe extern "C" fn read_part(
    user: *mut c_void,
    layer: u32,
    expert: u32,
    tensor: u32,
    offset: u64,
    bytes: u64,
    out: *mut c_void,
) -> i32 {
    if bytes == 0 {
        return 0;
    }
    // SAFETY: `user` is the model's `Reader`, which lives until the model is closed.
    let reader = unsafe { &*(user as *const Reader) };
    // SAFETY: the library lends `bytes` bytes at `out` for this call.
    let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<u8>(), bytes as usize) };
    called_back(|| reader.run(ExpertPart { layer, expert, tensor, offset }, out))
}

/// What the library borrows from a model's banks until the model is closed.
#[derive(Default)]
pub(crate) struct Lent {
    /// Only kept.
    _bytes: Vec<Bytes>,
    pub(crate) reader: Option<Arc<Reader>>,
}

/// Banks in C's words. What `raw` points to lies in the other fields.
pub(crate) struct RawBanks {
    pub(crate) raw: sys::moepage_banks,
    pub(crate) lent: Lent,
    _tensors: Vec<sys::moepage_expert_tensor>,
    _layer_tensors: Vec<sys::moepage_expert_tensor>,
    _data: Vec<*const c_void>,
    _files: RawFiles,
    _texts: Vec<Option<CString>>,
    _layer_index: Vec<i32>,
    _dense: Vec<sys::moepage_dense_tensor>,
}

fn optional_text(text: &Option<String>, what: &str) -> Result<Option<CString>> {
    text.as_ref().map(|text| c_text(text, what)).transpose()
}

impl RawBanks {
    pub(crate) fn new(banks: Banks) -> Result<Self> {
        check_layers(&banks)?;
        let n_tensors = banks.layer(0).len();
        let tensors: Vec<_> = banks.tensors.iter().map(|tensor| tensor.0).collect();
        let layer_tensors: Vec<_> =
            banks.layer_tensors.iter().flatten().map(|tensor| tensor.0).collect();
        let (mut bytes, mut reader, mut files) = (Vec::new(), None, RawFiles::default());
        match banks.source {
            Experts::Memory(ref given) => bytes = check_memory(&banks, given)?,
            Experts::Read(read) => {
                reader = Some(Arc::new(Reader { read, failure: Mutex::default() }));
            }
            Experts::Files { ref paths, ref places } => {
                check_count(&banks, places.len(), "places")?;
                files = RawFiles::new(paths, places)?;
            }
        }
        let layer_index = banks.layer_index;
        if !layer_index.is_empty() && layer_index.len() != banks.moe_layers as usize {
            let (n, wanted) = (layer_index.len(), banks.moe_layers);
            return Err(Error::argument(format!("layer_index has {n} entries, not {wanted}")));
        }
        let mut texts = vec![
            optional_text(&banks.architecture, "architecture")?,
            optional_text(&banks.config_json, "config_json")?,
        ];
        for tensor in &banks.dense {
            texts.push(Some(c_text(&tensor.name, "the name")?));
        }
        let dense = raw_dense(&banks.dense, &texts[2..])?;
        let data: Vec<_> = bytes.iter().map(|bytes| bytes.data.cast::<c_void>()).collect();
        let user = reader.as_ref().map_or(std::ptr::null(), Arc::as_ptr);
        let raw = sys::moepage_banks {
            moe_layers: banks.moe_layers,
            experts: banks.experts,
            top_k: banks.top_k,
            hidden: banks.hidden,
            expert_intermediate: banks.expert_intermediate,
            n_tensors: count(n_tensors, "tensors")?,
            tensors: list_or_null(&tensors),
            layer_tensors: list_or_null(&layer_tensors),
            data: list_or_null(&data),
            read: reader.as_ref().map(|_| read_part as _),
            read_user: user as *mut c_void,
            architecture: pointer_or_null(&texts[0]),
            config_json: pointer_or_null(&texts[1]),
            layer_index: list_or_null(&layer_index),
            layers: banks.layers,
            shared_experts: banks.shared_experts,
            vocabulary: banks.vocabulary,
            n_dense: count(dense.len(), "dense tensors")?,
            dense: dense.as_ptr(),
            activation: banks.activation.code(),
            activation_alpha: banks.activation_alpha,
            activation_limit: banks.activation_limit,
            n_files: count(files.list.len(), "files")?,
            files: list_or_null(&files.list),
            places: list_or_null(&files.places),
            ..Default::default()
        };
        let mut kept = bytes;
        kept.extend(banks.dense.into_iter().map(|tensor| tensor.data));
        Ok(RawBanks {
            raw,
            lent: Lent { _bytes: kept, reader },
            _tensors: tensors,
            _layer_tensors: layer_tensors,
            _data: data,
            _files: files,
            _texts: texts,
            _layer_index: layer_index,
            _dense: dense,
        })
    }
}

/// Paths and places in C's words.
#[derive(Default)]
struct RawFiles {
    _paths: Vec<CString>,
    list: Vec<*const c_char>,
    places: Vec<sys::moepage_file_place>,
}

impl RawFiles {
    fn new(paths: &[PathBuf], places: &[FilePlace]) -> Result<Self> {
        let paths = paths.iter().map(|path| c_path(path)).collect::<Result<Vec<_>>>()?;
        let list = paths.iter().map(|path| path.as_ptr()).collect();
        let raw = |place: &FilePlace| sys::moepage_file_place {
            file: place.file,
            offset: place.offset,
            ..Default::default()
        };
        Ok(RawFiles { _paths: paths, list, places: places.iter().map(raw).collect() })
    }
}

impl Banks {
    /// What a layer's experts consist of.
    fn layer(&self, i: usize) -> &[ExpertTensor] {
        self.layer_tensors.get(i).unwrap_or(&self.tensors)
    }
}

fn list_or_null<T>(list: &[T]) -> *const T {
    if list.is_empty() {
        std::ptr::null()
    } else {
        list.as_ptr()
    }
}

/// There is one list for all layers, or one for each, of as many tensors.
fn check_layers(banks: &Banks) -> Result<()> {
    let (layers, n) = (&banks.layer_tensors, banks.moe_layers as usize);
    if layers.is_empty() {
        return Ok(());
    }
    if !banks.tensors.is_empty() {
        return Err(Error::argument("tensors and layer_tensors are given, exactly one must be"));
    }
    if layers.len() != n || layers.iter().any(|tensors| tensors.len() != layers[0].len()) {
        let given: Vec<_> = layers.iter().map(Vec::len).collect();
        return Err(Error::argument(format!(
            "layer_tensors has lists of {given:?} tensors, not {n} of as many each"
        )));
    }
    Ok(())
}

/// C trusts its caller that there is one for each tensor of each expert.
fn check_count(banks: &Banks, given: usize, what: &str) -> Result<()> {
    let n_tensors = banks.layer(0).len() as u128;
    let n = u128::from(banks.moe_layers) * u128::from(banks.experts) * n_tensors;
    if given as u128 != n {
        return Err(Error::argument(format!(
            "{given} {what} of experts are given, layers * experts * tensors are {n}"
        )));
    }
    Ok(())
}

/// C trusts its caller that every pointer has enough behind it.
fn check_memory(banks: &Banks, bytes: &[Bytes]) -> Result<Vec<Bytes>> {
    check_count(banks, bytes.len(), "tensors")?;
    let n_tensors = banks.layer(0).len();
    let of_layer = n_tensors * banks.experts as usize;
    for (layer, bytes) in bytes.chunks(of_layer.max(1)).enumerate() {
        let needed = banks.layer(layer).iter().map(ExpertTensor::needed_bytes);
        let needed = needed.collect::<Result<Vec<_>>>()?;
        for (i, (given, needed)) in bytes.iter().zip(needed.iter().cycle()).enumerate() {
            if given.len != *needed {
                let (tensor, expert, given) = (i % n_tensors, i / n_tensors, given.len);
                return Err(Error::argument(format!(
                    "tensor {tensor} of expert {expert} of layer {layer} has {given} bytes, its \
                     shape takes {needed}"
                )));
            }
        }
    }
    Ok(bytes.to_vec())
}

fn raw_dense(
    dense: &[DenseTensor],
    names: &[Option<CString>],
) -> Result<Vec<sys::moepage_dense_tensor>> {
    dense
        .iter()
        .zip(names)
        .map(|(tensor, name)| {
            let needed = needed_bytes(Some(tensor.dtype), &tensor.shape)?;
            let size = tensor.dtype.size().unwrap_or(1) as usize;
            let (len, at) = (tensor.data.len, tensor.data.data as usize);
            if len != needed || at % size != 0 || tensor.shape.len() > sys::MOEPAGE_MAX_RANK {
                return Err(Error::argument(format!(
                    "{} has {len} bytes at {at:#x}; a {:?} of {:?}, of at most 4 dimensions, takes \
                     {needed} and is aligned to {size}",
                    tensor.name, tensor.dtype, tensor.shape
                )));
            }
            let mut raw = sys::moepage_dense_tensor {
                name: pointer_or_null(name),
                dtype: tensor.dtype.code(),
                rank: tensor.shape.len() as u32,
                data: tensor.data.data.cast(),
                ..Default::default()
            };
            raw.shape[..tensor.shape.len()].copy_from_slice(&tensor.shape);
            Ok(raw)
        })
        .collect()
}
