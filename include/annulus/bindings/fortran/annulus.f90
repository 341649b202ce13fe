! Fortran module of the C interface, annulus.h: what a program on one rank or over MPI needs. Compile it with the
! program, and link annulus_c (and annulus_c_mpi for annulus_ring_from_mpi).
!
! The first index of a Fortran array runs fastest, so the extents are in reverse order: q(head_dim, query_heads,
! local_queries, batch), lse(local_queries, query_heads, batch). annulus_tensor_of(q) describes an array to the library,
! which reads or writes it in the call that gets the description; the array is contiguous, and has the attribute target.
! Positions count from 0.
module annulus
  use, intrinsic :: iso_c_binding
  implicit none
  public

  integer(c_int), parameter :: annulus_success = 0, annulus_failure = 1, annulus_shape_error = 2, &
    annulus_unsupported_error = 3, annulus_communication_error = 4, annulus_out_of_memory = 5, annulus_other_error = 6
  integer(c_int), parameter :: annulus_float64 = 0, annulus_float32 = 1
  integer(c_int), parameter :: annulus_queries = 0, annulus_keys = 1
  integer(c_int), parameter :: annulus_contiguous = 0, annulus_striped = 1, annulus_zigzag = 2, annulus_explicit_map = 3
  integer(c_int), parameter :: annulus_rotation_automatic = 0, annulus_rotation_keys = 1, annulus_rotation_queries = 2
  integer(c_int), parameter :: annulus_schedule_ring = 0, annulus_schedule_both_directions = 1, &
    annulus_schedule_two_levels = 2, annulus_schedule_tiles = 3, annulus_schedule_all_gather = 4, &
    annulus_schedule_automatic = 5, annulus_schedule_double_ring = 6
  integer(c_int), parameter :: annulus_wire_as_stored = 0, annulus_wire_bfloat16 = 1, annulus_wire_half = 2
  integer(c_int), parameter :: annulus_zero_copy_automatic = 0, annulus_zero_copy_never = 1, annulus_zero_copy_always = 2

  type, bind(C) :: annulus_error
    integer(c_int) :: status, rank, step, neighbour
    type(c_ptr) :: message
  end type

  ! Components without a value given are of no tensor: num_axes 0.
  type, bind(C) :: annulus_tensor
    type(c_ptr) :: data = c_null_ptr
    integer(c_int) :: dtype = 0, num_axes = 0
    integer(c_int64_t) :: extents(4) = 0, strides(4) = 0
  end type

  type, bind(C) :: annulus_sharding
    integer(c_int) :: kind = annulus_contiguous
    integer(c_int64_t) :: block = 1
    integer(c_int) :: map_ranks = 0
    type(c_ptr) :: map_query_lengths = c_null_ptr, map_queries = c_null_ptr
    type(c_ptr) :: map_key_lengths = c_null_ptr, map_keys = c_null_ptr
  end type

  type, bind(C) :: annulus_ring_options
    integer(c_int64_t) :: timeout_ms
    integer(c_int) :: zero_copy
  end type

  ! 0: unlimited
  type, bind(C) :: annulus_link
    real(c_double) :: latency = 0, bandwidth = 0
  end type

  type, bind(C) :: annulus_rates
    real(c_double) :: flops = 0, step_overhead = 0
    type(annulus_link) :: near_link, far_link
    integer(c_int) :: group = 0
    real(c_double) :: overlap = 1
  end type

  ! visible: c_loc of an array (key_blocks, query_blocks) of integer(c_int8_t), 0 for hidden blocks.
  type, bind(C) :: annulus_block_mask
    integer(c_int64_t) :: query_block = 0, key_block = 0, query_blocks = 0, key_blocks = 0
    type(c_ptr) :: visible = c_null_ptr
  end type

  type, bind(C) :: annulus_options
    integer(c_int) :: causal = 0
    integer(c_int64_t) :: window_left = -1, window_right = -1, sink_tokens = 0, chunk = 0
    integer(c_int) :: has_softmax_scale = 0
    real(c_double) :: softmax_scale = 0, logit_softcap = 0, dropout_probability = 0
    integer(c_int64_t) :: dropout_seed = 0
    type(annulus_sharding) :: sharding
    integer(c_int) :: has_query_offset = 0
    integer(c_int64_t) :: query_offset = 0
    integer(c_int) :: rotation = annulus_rotation_automatic, schedule = annulus_schedule_ring, ranks_per_group = 0
    integer(c_int) :: wire = annulus_wire_as_stored, reproducible = 0
    integer(c_int64_t) :: reproducible_leaf = 1024
    integer(c_int) :: checked = -1, require_finite = 0, threads = 0, has_rates = 0
    type(annulus_rates) :: rates
    type(annulus_block_mask) :: blocks
  end type

  type, bind(C) :: annulus_operands
    type(annulus_tensor) :: bias, mask, query_documents, key_documents, sinks, joint_keys, joint_values
    integer(c_int) :: has_call = 0
    integer(c_int64_t) :: call = 0
    integer(c_int) :: forward_given = 0
  end type

  type, bind(C) :: annulus_gradients
    type(annulus_tensor) :: dq, dk, dv, dbias, dsinks, d_joint_keys, d_joint_values
  end type

  interface
    type(annulus_error) function annulus_last_error() bind(C)
      import :: annulus_error
    end function
    type(annulus_ring_options) function annulus_default_ring_options() bind(C)
      import :: annulus_ring_options
    end function
    integer(c_int) function annulus_ring_self(ring) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), intent(out) :: ring
    end function
    ! communicator: the integer handle, comm or comm%MPI_VAL. Collective.
    integer(c_int) function annulus_ring_from_mpi(communicator, options, ring) bind(C)
      import :: c_int, c_ptr, annulus_ring_options
      integer(c_int), value :: communicator
      type(annulus_ring_options), intent(in), optional :: options
      type(c_ptr), intent(out) :: ring
    end function
    integer(c_int) function annulus_ring_rank(ring) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: ring
    end function
    integer(c_int) function annulus_ring_size(ring) bind(C)
      import :: c_int, c_ptr
      type(c_ptr), value :: ring
    end function
    subroutine annulus_ring_free(ring) bind(C)
      import :: c_ptr
      type(c_ptr), value :: ring
    end subroutine
    integer(c_int) function annulus_attention_create(ring, options, attention) bind(C)
      import :: c_int, c_ptr, annulus_options
      type(c_ptr), value :: ring
      type(annulus_options), intent(in), optional :: options
      type(c_ptr), intent(out) :: attention
    end function
    subroutine annulus_attention_free(attention) bind(C)
      import :: c_ptr
      type(c_ptr), value :: attention
    end subroutine
    integer(c_int) function annulus_given_operands(operands) bind(C)
      import :: c_int, annulus_operands
      type(annulus_operands), intent(in), optional :: operands
    end function
    integer(c_int) function annulus_forward(attention, q, k, v, operands, output, lse, lse_remainder) bind(C)
      import :: c_int, c_ptr, annulus_tensor, annulus_operands
      type(c_ptr), value :: attention
      type(annulus_tensor), intent(in) :: q, k, v, output, lse
      type(annulus_operands), intent(in), optional :: operands
      type(annulus_tensor), intent(in), optional :: lse_remainder
    end function
    integer(c_int) function annulus_backward(attention, dout, output, lse, lse_remainder, q, k, v, operands, gradients) &
      bind(C)
      import :: c_int, c_ptr, annulus_tensor, annulus_operands, annulus_gradients
      type(c_ptr), value :: attention
      type(annulus_tensor), intent(in) :: dout, output, lse, q, k, v
      type(annulus_tensor), intent(in), optional :: lse_remainder
      type(annulus_operands), intent(in), optional :: operands
      type(annulus_gradients), intent(in) :: gradients
    end function
    integer(c_int) function annulus_shard_lengths(sharding, side, ranks, tokens, lengths) bind(C)
      import :: c_int, c_int64_t, annulus_sharding
      type(annulus_sharding), intent(in) :: sharding
      integer(c_int), value :: side, ranks
      integer(c_int64_t), value :: tokens
      integer(c_int64_t), intent(out) :: lengths(ranks)
    end function
    integer(c_int) function annulus_shard_positions(sharding, side, rank, ranks, lengths, positions) bind(C)
      import :: c_int, c_int64_t, annulus_sharding
      type(annulus_sharding), intent(in) :: sharding
      integer(c_int), value :: side, rank, ranks
      integer(c_int64_t), intent(in) :: lengths(ranks)
      integer(c_int64_t), intent(out) :: positions(*)
    end function
    integer(c_int) function annulus_balanced_map(document_lengths, documents, options, ranks, block, lengths, &
                                                 positions) bind(C)
      import :: c_int, c_int64_t, annulus_options
      integer(c_int), value :: documents, ranks
      integer(c_int64_t), intent(in) :: document_lengths(documents)
      type(annulus_options), intent(in) :: options
      integer(c_int64_t), value :: block
      integer(c_int64_t), intent(out) :: lengths(ranks), positions(*)
    end function
  end interface

  interface annulus_tensor_of
    module procedure tensor_of_float_4, tensor_of_double_4, tensor_of_float_3, tensor_of_double_3
  end interface
  private :: tensor_of_float_4, tensor_of_double_4, tensor_of_float_3, tensor_of_double_3, dense, require_contiguous

contains

  ! Message of the last failure on this thread.
  function annulus_message() result(text)
    character(:), allocatable :: text
    character(kind=c_char), pointer :: characters(:)
    type(annulus_error) :: error
    integer :: i, length
    interface
      integer(c_size_t) function strlen(string) bind(C)
        import :: c_size_t, c_ptr
        type(c_ptr), value :: string
      end function
    end interface
    error = annulus_last_error()
    length = int(strlen(error%message))
    call c_f_pointer(error%message, characters, [length])
    allocate (character(length) :: text)
    do i = 1, length
      text(i:i) = characters(i)
    end do
  end function

  ! Dense row-major tensor of extents in the order of the C interface.
  function dense(first, dtype, extents) result(tensor)
    type(c_ptr), intent(in) :: first
    integer(c_int), intent(in) :: dtype
    integer, intent(in) :: extents(:)
    type(annulus_tensor) :: tensor
    integer :: axis
    integer(c_int64_t) :: stride
    tensor%data = first
    tensor%dtype = dtype
    tensor%num_axes = size(extents)
    stride = 1
    do axis = size(extents), 1, -1
      tensor%extents(axis) = extents(axis)
      tensor%strides(axis) = stride
      stride = stride * extents(axis)
    end do
  end function

  subroutine require_contiguous(contiguous_array)
    logical, intent(in) :: contiguous_array
    if (.not. contiguous_array) error stop 'annulus_tensor_of requires a contiguous array, got an array with gaps'
  end subroutine

  function tensor_of_float_4(x) result(tensor)
    real(c_float), intent(in), target :: x(:, :, :, :)
    type(annulus_tensor) :: tensor
    call require_contiguous(is_contiguous(x))
    tensor = dense(c_loc(x), annulus_float32, [size(x, 4), size(x, 3), size(x, 2), size(x, 1)])
  end function

  function tensor_of_double_4(x) result(tensor)
    real(c_double), intent(in), target :: x(:, :, :, :)
    type(annulus_tensor) :: tensor
    call require_contiguous(is_contiguous(x))
    tensor = dense(c_loc(x), annulus_float64, [size(x, 4), size(x, 3), size(x, 2), size(x, 1)])
  end function

  function tensor_of_float_3(x) result(tensor)
    real(c_float), intent(in), target :: x(:, :, :)
    type(annulus_tensor) :: tensor
    call require_contiguous(is_contiguous(x))
    tensor = dense(c_loc(x), annulus_float32, [size(x, 3), size(x, 2), size(x, 1)])
  end function

  function tensor_of_double_3(x) result(tensor)
    real(c_double), intent(in), target :: x(:, :, :)
    type(annulus_tensor) :: tensor
    call require_contiguous(is_contiguous(x))
    tensor = dense(c_loc(x), annulus_float64, [size(x, 3), size(x, 2), size(x, 1)])
  end function

end module
