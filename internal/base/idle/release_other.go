//go:build !linux

package idle

// release does nothing, because there is no equivalent of the Linux implementation.
func release() {}

func mapped() uint64 { return 0 }
