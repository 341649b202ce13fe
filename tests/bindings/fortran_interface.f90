! The C interface from Fortran: forward and backward, against dense attention in double precision. Built twice: on one
! rank, and with USE_MPI on the ranks of MPI_COMM_WORLD.
program fortran_interface
  use annulus
#if defined(USE_MPI)
  use mpi
#endif
  implicit none
  integer, parameter :: tokens = 29, heads = 2, dim = 6, double = c_double
  type(c_ptr) :: ring, attention
  type(annulus_options) :: options
  type(annulus_gradients) :: gradients
  type(annulus_tensor) :: wrong
  integer :: rank, ranks, rows, failures
  integer(c_int64_t), allocatable :: lengths(:), positions(:)
  integer, allocatable :: own(:)
  real(double), dimension(dim, heads, tokens, 1) :: q, k, v, dout, output, dq, dk, dv
  real(double) :: lse(tokens, heads, 1)
  real(double), allocatable, target, dimension(:, :, :, :) :: q_own, k_own, v_own, dout_own, output_own, dq_own, dk_own, &
    dv_own
  real(double), allocatable, target, dimension(:, :, :) :: lse_own, remainder_own
  real(double), target, dimension(dim, heads, tokens, 1) :: d_joint_keys, d_joint_values
  integer(c_int8_t), target :: visible(1, 1) = 1
#if defined(USE_MPI)
  integer :: error
  call MPI_Init(error)
  call require(annulus_ring_from_mpi(MPI_COMM_WORLD, ring=ring))
#else
  call require(annulus_ring_self(ring))
#endif
  rank = annulus_ring_rank(ring)
  ranks = annulus_ring_size(ring)

  call fill(q, 1)
  call fill(k, 2)
  call fill(v, 3)
  call fill(dout, 4)
  call dense_attention()

  options%causal = 1
  options%sharding%kind = annulus_zigzag
  allocate (lengths(ranks))
  call require(annulus_shard_lengths(options%sharding, annulus_queries, ranks, int(tokens, c_int64_t), lengths))
  rows = int(lengths(rank + 1))
  allocate (positions(rows))
  call require(annulus_shard_positions(options%sharding, annulus_queries, rank, ranks, lengths, positions))
  allocate (own(rows))
  own = int(positions) + 1
  q_own = q(:, :, own, :)
  k_own = k(:, :, own, :)
  v_own = v(:, :, own, :)
  dout_own = dout(:, :, own, :)
  allocate (output_own, dq_own, dk_own, dv_own, mold=q_own)
  allocate (lse_own(rows, heads, 1), remainder_own(rows, heads, 1))

  call require(annulus_attention_create(ring, options, attention))
  wrong = annulus_tensor_of(k_own)
  wrong%dtype = annulus_float32
  if (annulus_forward(attention, annulus_tensor_of(q_own), wrong, annulus_tensor_of(v_own), &
                      output=annulus_tensor_of(output_own), lse=annulus_tensor_of(lse_own)) /= annulus_unsupported_error) &
    call fail('keys of another type are accepted')
  if (index(annulus_message(), 'k has elements of float32; accepted: float64') == 0) call fail(annulus_message())

  call require(annulus_forward(attention, annulus_tensor_of(q_own), annulus_tensor_of(k_own), annulus_tensor_of(v_own), &
                               output=annulus_tensor_of(output_own), lse=annulus_tensor_of(lse_own), &
                               lse_remainder=annulus_tensor_of(remainder_own)))
  gradients%dq = annulus_tensor_of(dq_own)
  gradients%dk = annulus_tensor_of(dk_own)
  gradients%dv = annulus_tensor_of(dv_own)
  call require(annulus_backward(attention, annulus_tensor_of(dout_own), annulus_tensor_of(output_own), &
                                annulus_tensor_of(lse_own), annulus_tensor_of(remainder_own), annulus_tensor_of(q_own), &
                                annulus_tensor_of(k_own), annulus_tensor_of(v_own), gradients=gradients))

  failures = 0
  call compare('output', output_own, output(:, :, own, :))
  call compare('dq', dq_own, dq(:, :, own, :))
  call compare('dk', dk_own, dk(:, :, own, :))
  call compare('dv', dv_own, dv(:, :, own, :))
  if (maxval(abs(lse_own - lse(own, :, :))) > 1e-12_double) call fail('lse differs from that of dense attention')
  call annulus_attention_free(attention)

  ! Without a mask, all keys as joint keys: the same as keys of the ranks, and their gradients are on all ranks.
  options%causal = 0
  call annulus_attention_gradients(joint=.false.)
  dk(:, :, own, :) = dk_own
  output(:, :, own, :) = output_own
  call annulus_attention_gradients(joint=.true.)
  call compare('output with joint keys', output_own, output(:, :, own, :))
  call compare('d_joint_keys', d_joint_keys(:, :, own, :), dk(:, :, own, :))
  if (failures > 0) error stop 1

  call annulus_ring_free(ring)
#if defined(USE_MPI)
  call MPI_Finalize(error)
#endif
  if (rank == 0) print '(a, i0, a)', 'Fortran on ', ranks, ' rank(s) agrees with dense attention'

contains

  ! Both passes, with the keys of the ranks or with all of them as joint keys, which then hide the others.
  subroutine annulus_attention_gradients(joint)
    logical, intent(in) :: joint
    type(annulus_operands) :: operands
    real(double), target :: joint_keys(dim, heads, tokens, 1), joint_values(dim, heads, tokens, 1)
    joint_keys = k
    joint_values = v
    gradients = annulus_gradients()
    gradients%dq = annulus_tensor_of(dq_own)
    gradients%dk = annulus_tensor_of(dk_own)
    gradients%dv = annulus_tensor_of(dv_own)
    options%blocks = annulus_block_mask(query_block=tokens, key_block=tokens, query_blocks=1, key_blocks=1, &
                                        visible=c_loc(visible))
    if (joint) then
      visible = 0
      operands%joint_keys = annulus_tensor_of(joint_keys)
      operands%joint_values = annulus_tensor_of(joint_values)
      gradients%d_joint_keys = annulus_tensor_of(d_joint_keys)
      gradients%d_joint_values = annulus_tensor_of(d_joint_values)
    end if
    call require(annulus_attention_create(ring, options, attention))
    call require(annulus_forward(attention, annulus_tensor_of(q_own), annulus_tensor_of(k_own), annulus_tensor_of(v_own), &
                                 operands, annulus_tensor_of(output_own), annulus_tensor_of(lse_own), &
                                 annulus_tensor_of(remainder_own)))
    call require(annulus_backward(attention, annulus_tensor_of(dout_own), annulus_tensor_of(output_own), &
                                  annulus_tensor_of(lse_own), annulus_tensor_of(remainder_own), annulus_tensor_of(q_own), &
                                  annulus_tensor_of(k_own), annulus_tensor_of(v_own), operands, gradients))
    call annulus_attention_free(attention)
  end subroutine

  subroutine require(status)
    integer(c_int), intent(in) :: status
    if (status /= annulus_success) call fail(annulus_message())
  end subroutine

  subroutine fail(message)
    character(*), intent(in) :: message
    write (*, '(a)') message
    error stop 1
  end subroutine

  subroutine fill(x, seed)
    real(double), intent(out) :: x(:, :, :, :)
    integer, intent(in) :: seed
    integer :: d, h, i
    do i = 1, size(x, 3)
      do h = 1, size(x, 2)
        do d = 1, size(x, 1)
          x(d, h, i, 1) = sin(real(7 * d + 31 * h + 13 * i * seed, double))
        end do
      end do
    end do
  end subroutine

  subroutine dense_attention()
    real(double) :: weight(tokens), dlogit, scale
    integer :: h, i, j
    scale = 1 / sqrt(real(dim, double))
    output = 0
    dq = 0
    dk = 0
    dv = 0
    do h = 1, heads
      do i = 1, tokens
        do j = 1, i
          weight(j) = exp(scale * dot_product(q(:, h, i, 1), k(:, h, j, 1)))
        end do
        lse(i, h, 1) = log(sum(weight(:i)))
        weight(:i) = weight(:i) / sum(weight(:i))
        do j = 1, i
          output(:, h, i, 1) = output(:, h, i, 1) + weight(j) * v(:, h, j, 1)
        end do
        do j = 1, i
          dlogit = scale * weight(j) * dot_product(dout(:, h, i, 1), v(:, h, j, 1) - output(:, h, i, 1))
          dq(:, h, i, 1) = dq(:, h, i, 1) + dlogit * k(:, h, j, 1)
          dk(:, h, j, 1) = dk(:, h, j, 1) + dlogit * q(:, h, i, 1)
          dv(:, h, j, 1) = dv(:, h, j, 1) + weight(j) * dout(:, h, i, 1)
        end do
      end do
    end do
  end subroutine

  subroutine compare(name, found, expected)
    character(*), intent(in) :: name
    real(double), intent(in) :: found(:, :, :, :), expected(:, :, :, :)
    real(double) :: difference
    difference = maxval(abs(found - expected))
    if (difference <= 1e-12_double) return
    print '(a, a, es9.2)', name, ' differs from that of dense attention by ', difference
    failures = failures + 1
  end subroutine

end program
