// Command client-go likes or unlikes videos with tidemark's client library:
//
//	export TIDEMARK_TOKEN=$(tidemark token --user u7)
//	go run ./examples/client-go -user u7 LIKED V9001 V9002
//
// Stop it while the API is away, and start it again without arguments: what was
// clicked is in the journal and is sent then.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/tidemark/tidemark/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "client-go:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("client-go", flag.ContinueOnError)
	url := flags.String("url", "http://127.0.0.1:8080", "the API")
	user := flags.String("user", "u7", "the user of TIDEMARK_TOKEN")
	journal := flags.String("journal", "client-go.journal", "where unsettled clicks are kept")
	patience := flags.Duration("patience", 10*time.Second, "how long to wait for the API")
	if err := flags.Parse(args); err != nil {
		return err
	}
	c, err := client.Open(client.Config{
		URL: *url, User: *user, Journal: *journal,
		Token: func(context.Context) (string, error) { return os.Getenv("TIDEMARK_TOKEN"), nil },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()

	var videos []string
	if flags.NArg() > 1 {
		state := client.State(flags.Arg(0))
		videos = flags.Args()[1:]
		for _, video := range videos {
			if err := c.Set(client.Like(video), state); err != nil {
				return err
			}
			fmt.Fprintf(out, "%s is shown as %s\n", video, c.View(client.Like(video)).State)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, *patience)
	defer cancel()
	if err := c.Flush(ctx); err != nil {
		return fmt.Errorf("%d clicks are kept for the next start: %w", c.Pending(), err)
	}
	for _, video := range videos {
		v := c.View(client.Like(video))
		if v.Err != nil {
			return fmt.Errorf("%s stays %s: %w", video, v.State, v.Err)
		}
		fmt.Fprintf(out, "%s is %s, version %d\n", video, v.State, v.Confirmed.Version)
	}
	return nil
}
