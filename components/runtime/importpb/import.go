// Package importpb describes the calls of the runtime that are not in CRI:
// importing images from an archive, and upgrading the runtime itself. They use
// messages that protobuf itself defines, so that there is nothing to generate.
package importpb

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	service = "hyperkube.runtime.v1.Runtime"
	method  = "Import"
	upgrade = "Upgrade"
	// chunk is how many bytes of the archive go into a message.
	chunk = 256 << 10
)

// Server is what a runtime does beside CRI.
type Server interface {
	// ImportImages reads an archive and returns the names of the images in
	// it, or their IDs where they have no name.
	ImportImages(ctx context.Context, archive io.Reader) ([]string, error)
	// Upgrade makes the process execute another program, argv[0], an absolute
	// path, in its place. It returns before that happens.
	Upgrade(ctx context.Context, argv []string) error
}

// Register serves s.
func Register(registrar grpc.ServiceRegistrar, s Server) {
	registrar.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*Server)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: upgrade,
			Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				var list structpb.ListValue
				if err := decode(&list); err != nil {
					return nil, err
				}
				var argv []string
				for _, v := range list.GetValues() {
					argv = append(argv, v.GetStringValue())
				}
				return &emptypb.Empty{}, srv.(Server).Upgrade(ctx, argv)
			},
		}},
		Streams: []grpc.StreamDesc{{
			StreamName: method, ClientStreams: true, ServerStreams: true,
			Handler: func(srv any, stream grpc.ServerStream) error {
				names, err := srv.(Server).ImportImages(stream.Context(), &reader{stream: stream})
				if err != nil {
					return err
				}
				for _, name := range names {
					if err := stream.SendMsg(wrapperspb.String(name)); err != nil {
						return err
					}
				}
				return nil
			},
		}},
	}, s)
}

// reader reads the chunks of a stream.
type reader struct {
	stream interface{ RecvMsg(any) error }
	rest   []byte
}

func (r *reader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		var m wrapperspb.BytesValue
		if err := r.stream.RecvMsg(&m); err != nil {
			return 0, err // io.EOF at the end
		}
		r.rest = m.GetValue()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Import sends an archive over a connection to the runtime's socket and
// returns the names of the images in it, or their IDs where they have none.
func Import(ctx context.Context, conn grpc.ClientConnInterface, archive io.Reader) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/"+service+"/"+method)
	if err != nil {
		return nil, fmt.Errorf("importing images: %w", err)
	}
	buf := make([]byte, chunk)
	for {
		n, err := io.ReadFull(archive, buf)
		if n > 0 {
			if err := stream.SendMsg(wrapperspb.Bytes(buf[:n])); err != nil {
				// The reason comes with the answer.
				break
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading the image archive: %w", err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		return nil, fmt.Errorf("importing images: %w", err)
	}
	var names []string
	for {
		var name wrapperspb.StringValue
		err := stream.RecvMsg(&name)
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return names, fmt.Errorf("importing images: %w", err)
		}
		names = append(names, name.GetValue())
	}
}

// Upgrade makes the runtime at the end of a connection execute another program
// in its place, with the same process number, so that it stays the parent of
// every container. argv[0] is the program's absolute path. The socket is away
// for a moment afterwards.
func Upgrade(ctx context.Context, conn grpc.ClientConnInterface, argv []string) error {
	list := &structpb.ListValue{}
	for _, arg := range argv {
		list.Values = append(list.Values, structpb.NewStringValue(arg))
	}
	if err := conn.Invoke(ctx, "/"+service+"/"+upgrade, list, &emptypb.Empty{}); err != nil {
		return fmt.Errorf("upgrading the container runtime: %w", err)
	}
	return nil
}
