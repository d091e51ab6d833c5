package nftnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrInterrupted is returned by List if objects were changed while they were read, so that the result is incomplete.
var ErrInterrupted = errors.New("objects were changed while they were read")

// receiveBuffer is the size of the receive buffer of a socket in bytes. A single transaction can change thousands of
// rules, and the kernel reports each of them.
const receiveBuffer = 1 << 20

// Listen returns a socket on which the kernel reports all changes of nf_tables objects in the network namespace of the
// calling thread. The caller closes it.
func Listen() (*os.File, error) {
	fd, err := open(unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)}); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribing to rule changes: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

func open(flags int) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|flags, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("opening netlink socket: %w", err)
	}
	return fd, nil
}

// Send makes the changes of b atomically, in the network namespace of the calling thread. The kernel makes none of them
// if it returns an error, which wraps the error number of the first change that failed. It does nothing if b is empty.
// b must not be used afterwards.
func (b *Batch) Send() error {
	if b.Empty() {
		return nil
	}
	fd, err := open(0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// The kernel reports errors without request, and one acknowledgement confirms the whole batch.
	flags := b.data[b.message+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	b.begin(unix.NFNL_MSG_BATCH_END, unix.NFPROTO_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, 0)
	b.end()
	// The kernel only accepts a batch as a single datagram.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, len(b.data)+4096)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	if err := unix.Sendto(fd, b.data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("sending %d changes to nf_tables: %w", b.messages, err)
	}
	return b.result(fd)
}

// result returns the first error among the kernel's replies, all of which the kernel has queued before Sendto returned.
func (b *Batch) result(fd int) error {
	var failed error
	acknowledged := false
	buffer := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) && acknowledged || errors.Is(err, unix.ENOBUFS) && failed != nil:
			return failed
		case errors.Is(err, unix.EAGAIN):
			return errors.New("changing nf_tables: the kernel does not confirm the changes")
		case err != nil:
			return fmt.Errorf("changing nf_tables: %w", err)
		}
		EachMessage(buffer[:n], func(m Message) {
			if m.kind != unix.NLMSG_ERROR {
				return
			}
			acknowledged = true
			if code := m.errorCode(); code != 0 && failed == nil {
				failed = fmt.Errorf("%s: %w", b.describe(m.sequence), code)
			}
		})
	}
}

// describe returns a description of the message with a sequence number, for an error: the change and its first names.
func (b *Batch) describe(sequence uint32) string {
	text := "changing nf_tables"
	EachMessage(b.data, func(m Message) {
		if m.sequence != sequence || m.kind>>8 != unix.NFNL_SUBSYS_NFTABLES {
			return
		}
		names := []string{map[int]string{
			unix.NFT_MSG_NEWTABLE: "creating table", unix.NFT_MSG_DELTABLE: "deleting table", unix.NFT_MSG_NEWCHAIN: "creating chain",
			unix.NFT_MSG_DELCHAIN: "deleting chain", unix.NFT_MSG_NEWRULE: "creating rule", unix.NFT_MSG_DELRULE: "deleting rules",
			unix.NFT_MSG_NEWSET: "creating set", unix.NFT_MSG_DELSET: "deleting set", unix.NFT_MSG_NEWSETELEM: "creating elements",
			unix.NFT_MSG_DELSETELEM: "deleting elements",
		}[m.Change()]}
		for attribute, value := range Attributes(m.Data) {
			printable := strings.TrimRight(string(value), "\x00")
			if attribute <= 3 && printable != "" && !strings.ContainsFunc(printable, func(r rune) bool { return r < ' ' || r > '~' }) {
				names = append(names, printable)
			}
		}
		text = strings.Join(names, " ")
	})
	return text
}

// List calls visit for each object of a kind, such as NFT_MSG_GETRULE, in a family. add adds the attributes that select
// objects, such as the table; it may be nil. The data that visit gets is valid until it returns. If objects are changed
// at the same time, List returns ErrInterrupted and the caller must repeat it.
func List(kind int, family byte, add func(*Batch), visit func(attributes []byte)) error {
	fd, err := open(0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request := &Batch{}
	request.data = appendHeader(nil, uint16(unix.NFNL_SUBSYS_NFTABLES<<8|kind), family, 0, unix.NLM_F_DUMP, 1)
	if add != nil {
		add(request)
	}
	request.end()
	if err := unix.Sendto(fd, request.data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("listing nf_tables objects: %w", err)
	}
	buffer := make([]byte, 64<<10)
	interrupted := false
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("listing nf_tables objects: %w", err)
		}
		done := false
		var failed error
		EachMessage(buffer[:n], func(m Message) {
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case m.kind == unix.NLMSG_DONE:
				done = true
			case m.kind == unix.NLMSG_ERROR:
				failed = m.errorCode()
			case m.kind>>8 == unix.NFNL_SUBSYS_NFTABLES:
				visit(m.Data)
			}
		})
		switch {
		case failed != nil:
			return fmt.Errorf("listing nf_tables objects: %w", failed)
		case done && interrupted:
			return fmt.Errorf("listing nf_tables objects: %w", ErrInterrupted)
		case done:
			return nil
		}
	}
}
