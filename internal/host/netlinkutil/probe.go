package netlinkutil

import (
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Unsupported returns the links that the kernel cannot create, by name, with the kernel's errors. It creates them in a
// temporary network namespace, and returns an error if that cannot be created. The kernel loads missing modules itself.
func Unsupported(links ...netlink.Link) (map[string]error, error) {
	type result struct {
		unsupported map[string]error
		err         error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread exits with its namespace
		unsupported, err := createInNamespace(links)
		done <- result{unsupported, err}
	}()
	r := <-done
	return r.unsupported, r.err
}

// createInNamespace moves the calling thread to a new network namespace and creates links there. The result is that of
// Unsupported.
func createInNamespace(links []netlink.Link) (map[string]error, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	unsupported := map[string]error{}
	for _, link := range links {
		if err := h.LinkAdd(link); err != nil {
			unsupported[link.Attrs().Name] = err
		}
	}
	return unsupported, nil
}
