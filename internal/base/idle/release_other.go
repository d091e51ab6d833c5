//go:build !linux

package idle

// release does nothing on other operating systems.
func release() {}

func mapped() uint64 { return 0 }
