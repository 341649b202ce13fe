# Between nkilib's layouts and those of the kernel.


def transposed(dst, src, items, rows, columns, dtype, core, cores):
    # dst [items, columns, rows] = src [items, rows, columns], in blocks of 128 x 128 that the cores share.
    block = 0
    for item in range(items):
        for row in range(0, rows, 128):
            for column in range(0, columns, 128):
                if block % cores == core:
                    height = min(128, rows - row)
                    width = min(128, columns - column)
                    loaded = nl.ndarray((128, 128), dtype=dtype, buffer=nl.sbuf)
                    product = nl.ndarray((128, 128), dtype=dtype, buffer=nl.psum)
                    stored = nl.ndarray((128, 128), dtype=dtype, buffer=nl.sbuf)
                    nisa.dma_copy(dst=loaded[0:height, 0:width],
                                  src=src.ap(pattern=[[columns, height], [1, width]],
                                             offset=(item * rows + row) * columns + column))
                    nisa.nc_transpose(dst=product[0:width, 0:height], data=loaded[0:height, 0:width])
                    nisa.tensor_copy(dst=stored[0:width, 0:height], src=product[0:width, 0:height])
                    nisa.dma_copy(dst=dst.ap(pattern=[[rows, width], [1, height]],
                                             offset=(item * columns + column) * rows + row),
                                  src=stored[0:width, 0:height])
                block += 1
