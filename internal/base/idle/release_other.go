//go:build !linux

package idle

// release does nothing, because there is no equivalent of the Linux implementation.
func release() {}

// mapped returns zero: the size of file mappings is read only on Linux.
func mapped() uint64 { return 0 }
